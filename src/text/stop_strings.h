// Finds the first of several stop strings in a text that arrives in pieces, holding back what may
// be the beginning of one.
//
// The first match is the one that is complete first, because the text ends there; among those that
// are complete with the same byte it is the longest. So the answer does not depend on how the text
// is cut into pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace syncline::text {

class StopStrings {
 public:
  // Empty strings never match. `keep`: the matched string stays in the text (`no_stop_trim`).
  StopStrings(std::vector<std::string> stops, bool keep);

  struct Found {
    std::string text;                    // may be given to the client now
    std::optional<std::string> matched;  // the stop string; the text ends with this piece
  };
  // Time is linear in the piece for each stop string. After a match nothing more comes out.
  Found Push(std::string_view piece);
  // What was held back; nothing more comes.
  std::string Finish();

 private:
  // Knuth, Morris, Pratt: `borders[n]` is the length of the longest proper beginning of `text` that
  // ends its first n + 1 bytes; `matched` of the last bytes of the text so far begin `text`.
  struct Stop {
    std::string text;
    std::vector<std::size_t> borders;
    std::size_t matched = 0;
  };
  static bool Step(Stop& stop, char byte);

  std::vector<Stop> stops_;
  bool keep_;
  bool is_done_ = false;
  std::string held_;
};

}  // namespace syncline::text
