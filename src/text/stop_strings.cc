#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace syncline::text {

StopStrings::StopStrings(std::vector<std::string> stops, bool keep) : keep_(keep) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    // The borders are the matches of the text, from its second byte on, with itself.
    Stop stop{.text = std::move(text), .borders = {0}};
    for (std::size_t n = 1; n < stop.text.size(); ++n) {
      Step(stop, stop.text[n]);
      stop.borders.push_back(stop.matched);
    }
    stop.matched = 0;
    stops_.push_back(std::move(stop));
  }
}

// Is the stop string complete with this byte?
bool StopStrings::Step(Stop& stop, char byte) {
  while (stop.matched > 0 && stop.text[stop.matched] != byte) {
    stop.matched = stop.borders[stop.matched - 1];
  }
  if (stop.text[stop.matched] == byte) ++stop.matched;
  return stop.matched == stop.text.size();
}

StopStrings::Found StopStrings::Push(std::string_view piece) {
  if (is_done_) return {};
  for (std::size_t n = 0; n < piece.size(); ++n) {
    const Stop* longest = nullptr;
    for (Stop& stop : stops_) {
      if (!Step(stop, piece[n])) continue;
      if (longest == nullptr || stop.text.size() > longest->text.size()) longest = &stop;
    }
    if (longest == nullptr) continue;
    is_done_ = true;
    Found found{.text = std::exchange(held_, {}), .matched = longest->text};
    found.text += piece.substr(0, n + 1);
    if (!keep_) found.text.resize(found.text.size() - longest->text.size());
    return found;
  }
  held_ += piece;
  std::size_t keep_back = 0;
  for (const Stop& stop : stops_) keep_back = std::max(keep_back, stop.matched);
  const std::size_t out = held_.size() - keep_back;
  Found found{.text = held_.substr(0, out), .matched = std::nullopt};
  held_.erase(0, out);
  return found;
}

std::string StopStrings::Finish() {
  is_done_ = true;
  return std::exchange(held_, {});
}

}  // namespace syncline::text
