#include "serve/fakes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "serve/update_fields.h"

namespace syncline::serve {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;
using engine::Event;
using engine::Finish;
using engine::Request;
using engine::TokenLogprob;

Status FakeEngine::Submit(Request request, engine::Sink sink) {
  const std::scoped_lock lock(mutex_);
  if (!submit_status) return submit_status;
  if (request.id == refused_id) return Fail(Code::kInvalidArgument, "top_p: refused");
  if (running_.contains(request.id)) {
    return Fail(Code::kAlreadyExists, fmt::format("id {} is in use", request.id));
  }
  running_[request.id] = sink;
  requests_.push_back(request);
  if (!hold) {
    thread_.Post(
        [this, request = std::move(request), sink = std::move(sink)] { Answer(request, sink); });
  }
  return {};
}

void FakeEngine::Answer(const Request& request, const engine::Sink& sink) {
  Event event;
  event.weight_version = stats().weight_version;
  const auto logprob = [](std::uint32_t k) {
    return TokenLogprob{static_cast<engine::TokenId>(100 + k), 0 - static_cast<float>(k) / 8};
  };
  if (request.logprobs.enabled && request.logprobs.start >= 0) {
    engine::Logprobs& input = event.input_logprobs.emplace();
    for (std::size_t i = static_cast<std::size_t>(request.logprobs.start);
         i < request.input_ids.size(); ++i) {
      const bool first = input.tokens.empty();
      input.tokens.push_back({request.input_ids[i], first ? std::nullopt : std::optional(-0.5F)});
      if (request.logprobs.top > 0) {
        input.top.push_back(first ? std::vector<TokenLogprob>() : std::vector{logprob(1)});
      }
    }
  }
  const std::uint32_t count = request.sampling.max_new_tokens;
  for (std::uint32_t k = 0; k < count; ++k) {
    event.tokens.push_back(static_cast<engine::TokenId>(100 + k));
    event.text += fmt::format("<{}>", k);
    if (request.logprobs.enabled) event.output_logprobs.tokens.push_back(logprob(k));
    if (request.logprobs.top > 0) event.output_logprobs.top.push_back({logprob(k), logprob(k + 1)});
    if (!request.logprobs.tokens.empty()) event.output_logprobs.chosen.push_back({logprob(9)});
    if (request.stream && k + 1 < count) {
      sink(std::exchange(event, {.weight_version = event.weight_version}));
    }
  }
  event.finish = Finish{.kind = Finish::Kind::kLength, .length = count};
  event.weight_versions = {{event.weight_version, 0, count}};
  event.prefill_weight_versions = {
      {event.weight_version, 0, static_cast<std::uint32_t>(request.input_ids.size())}};
  event.cached_tokens = 1;
  if (request.experts_from) event.experts = {1, 258};
  {
    const std::scoped_lock lock(mutex_);
    running_.erase(request.id);
  }
  sink(event);
}

void FakeEngine::Abort(std::string id, AbortMatch match, std::string message) {
  const char* kind = match == AbortMatch::kAll      ? "abort all"
                     : match == AbortMatch::kPrefix ? "abort prefix "
                                                    : "abort ";
  Note(kind + id);
  thread_.Post([this, id, match, message] {
    std::vector<engine::Sink> taken;
    {
      const std::scoped_lock lock(mutex_);
      std::erase_if(running_, [&](const auto& entry) {
        const bool hit =
            match == AbortMatch::kAll ||
            (match == AbortMatch::kPrefix ? entry.first.starts_with(id) : entry.first == id);
        if (hit && hold) taken.push_back(entry.second);
        return hit && hold;
      });
    }
    for (const engine::Sink& sink : taken) {
      sink(LastEvent({.kind = Finish::Kind::kAbort, .message = message}));
    }
  });
}

void FakeEngine::Pause(engine::PauseMode mode, Done done) {
  const char* name = mode == engine::PauseMode::kAbort     ? "abort"
                     : mode == engine::PauseMode::kRetract ? "retract"
                                                           : "in_place";
  Note(std::string("pause ") + name);
  thread_.Post([this, done] { done(control_status); });
}

void FakeEngine::Continue(Done done) {
  Note("continue");
  thread_.Post([this, done] { done(control_status); });
}

void FakeEngine::Flush(std::chrono::milliseconds wait, Done done) {
  Note(fmt::format("flush {}", wait.count()));
  thread_.Post([this, done] { done(flush_status); });
}

void FakeEngine::Exclusive(ExclusiveOptions, std::function<Status()> work, Done done) {
  thread_.Post([work, done] { done(work()); });
}

void FakeEngine::SetHold(engine::Hold, std::string, Done done) {
  thread_.Post([this, done = std::move(done)] { done(control_status); });
}

void FakeEngine::SetVersion(std::string label, Done done) {
  Note("version " + label);
  thread_.Post([this, label, done] {
    if (control_status) {
      const std::scoped_lock lock(mutex_);
      stats_.weight_version = label;
    }
    done(control_status);
  });
}

engine::Stats FakeEngine::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

void FakeEngine::SetStats(engine::Stats stats) {
  const std::scoped_lock lock(mutex_);
  stats_ = std::move(stats);
}

void FakeEngine::Emit(const std::string& id, const Event& event) {
  thread_.Post([this, id, event] {
    engine::Sink sink;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = running_.find(id);
      if (found == running_.end()) return;
      sink = found->second;
      if (event.finish) running_.erase(found);
    }
    sink(event);
  });
  Sync();
}

std::vector<Request> FakeEngine::requests() {
  Sync();
  const std::scoped_lock lock(mutex_);
  return requests_;
}

std::vector<std::string> FakeEngine::calls() {
  Sync();
  const std::scoped_lock lock(mutex_);
  return calls_;
}

std::size_t FakeEngine::running() {
  Sync();
  const std::scoped_lock lock(mutex_);
  return running_.size();
}

void FakeEngine::Note(std::string call) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(std::move(call));
}

void FakeEngine::Sync() {
  std::promise<void> reached;
  thread_.Post([&] { reached.set_value(); });
  reached.get_future().wait();
}

Event LastEvent(Finish finish, std::vector<engine::TokenId> tokens, std::string text) {
  Event event;
  event.tokens = std::move(tokens);
  event.text = std::move(text);
  event.weight_version = "7";
  event.finish = std::move(finish);
  event.weight_versions = {{"7", 0, static_cast<std::uint32_t>(event.tokens.size())}};
  return event;
}

void FakeWeights::FromDisk(update::DiskUpdate update, Updated done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(fmt::format("update {} {} {}", update.path, update.weight_version.value_or("-"),
                               update.flush_cache));
  const auto end = [this, update, done](const Status& status) {
    EndDiskUpdate(update, done, status);
  };
  if (hold) {
    held_.emplace_back(end);
  } else {
    thread_.Post([end] { end({}); });
  }
}

void FakeWeights::EndDiskUpdate(const update::DiskUpdate& update, const Updated& done,
                                const Status& status) {
  if (!status) return done(std::unexpected(status.error()));
  {
    const std::scoped_lock lock(mutex_);
    path_ = update.path;
  }
  if (update.weight_version) {
    std::promise<void> set;
    engine_.SetVersion(*update.weight_version, [&](const Status&) { set.set_value(); });
    set.get_future().wait();
  }
  done(
      update::UpdateReport{.tensors = 3, .bytes = 64, .stage_seconds = 0.5, .apply_seconds = 0.25});
}

void FakeWeights::Begin(update::BeginRequest request, std::function<void(Status)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(fmt::format("begin {}{}", update::Name(request.selector),
                               request.sync_base ? "" : " adapters"));
  if (begun) session_ = {.open = true, .selector = request.selector};
  thread_.Post([done, status = begun] { done(status); });
}

void FakeWeights::End(update::EndRequest request, Updated done) {
  const std::scoped_lock lock(mutex_);
  calls_.emplace_back(request.abort ? "end abort" : "end");
  if (ended) session_ = {};
  thread_.Post([done, report = ended] { done(report); });
}

void FakeWeights::FromTensors(update::TensorUpdate update, Updated done) {
  const std::scoped_lock lock(mutex_);
  calls_.emplace_back("tensors");
  if (updated && session_.open) {
    session_.loaded = true;
    session_.weight_version = update.weight_version;
  }
  tensor_updates_.push_back(std::move(update));
  thread_.Post([done, report = updated] { done(report); });
}

void FakeWeights::JoinGroup(update::GroupRequest request, std::function<void(Status)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.emplace_back("join");
  joined_groups_.push_back(std::move(request));
  thread_.Post([done, status = joined] { done(status); });
}

void FakeWeights::LeaveGroup(std::string name, std::function<void(Status)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back("leave " + name);
  thread_.Post([done, status = left] { done(status); });
}

void FakeWeights::FromGroup(update::GroupUpdate update, Updated done) {
  const std::scoped_lock lock(mutex_);
  calls_.emplace_back("group");
  base::Result<update::UpdateReport> report = updated;
  if (!update.refusal.empty()) report = base::Fail(base::Code::kInvalidArgument, update.refusal);
  group_updates_.push_back(std::move(update));
  thread_.Post([done, report] { done(report); });
}

void FakeWeights::SetVersion(std::string label, std::function<void(Status)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back("version " + label);
  if (!session_.open) return engine_.SetVersion(label, done);
  session_.weight_version = label;
  thread_.Post([done] { done({}); });
}

void FakeWeights::ReleaseMemory(update::MemoryParts parts, std::function<void(Status)> done) {
  ChangeMemory("release", parts, done);
}

void FakeWeights::ResumeMemory(update::MemoryParts parts, std::function<void(Status)> done) {
  ChangeMemory("resume", parts, done);
}

void FakeWeights::ChangeMemory(std::string call, const update::MemoryParts& parts,
                               const std::function<void(Status)>& done) {
  if (parts.kv_cache) call += " kv_cache";
  if (parts.weights) call += " weights";
  const std::scoped_lock lock(mutex_);
  calls_.push_back(std::move(call));
  thread_.Post([done, status = memory_changed] { done(status); });
}

update::SessionState FakeWeights::session() const {
  const std::scoped_lock lock(mutex_);
  return session_;
}

void FakeWeights::SetSession(update::SessionState session) {
  const std::scoped_lock lock(mutex_);
  session_ = std::move(session);
}

void FakeWeights::Check(update::CheckRequest request,
                        std::function<void(Result<update::CheckReport>)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.emplace_back("check");
  checks_.push_back(std::move(request));
  thread_.Post([done, report = checked] { done(report); });
}

std::vector<update::TensorUpdate> FakeWeights::tensor_updates() {
  const std::scoped_lock lock(mutex_);
  return tensor_updates_;
}

std::vector<update::GroupRequest> FakeWeights::joined_groups() {
  const std::scoped_lock lock(mutex_);
  return joined_groups_;
}

std::vector<update::GroupUpdate> FakeWeights::group_updates() {
  const std::scoped_lock lock(mutex_);
  return group_updates_;
}

std::vector<update::CheckRequest> FakeWeights::checks() {
  const std::scoped_lock lock(mutex_);
  return checks_;
}

void FakeWeights::Pull(update::PullRequest request,
                       std::function<void(std::vector<update::HostPull>)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(fmt::format("pull {} {} {}", request.source, request.replica, request.version));
  const auto end = [done, version = request.version, others = other_hosts](const Status& status) {
    std::vector<update::HostPull> pulls = {{.host = "localhost", .outcome = {status, {}}}};
    if (status) pulls[0].outcome.held = version;
    pulls.insert(pulls.end(), others.begin(), others.end());
    done(std::move(pulls));
  };
  if (hold) {
    held_.emplace_back(end);
  } else {
    thread_.Post([end] { end({}); });
  }
}

void FakeWeights::OpenSeed(update::SeedGroups groups,
                           std::function<void(Result<std::vector<std::uint16_t>>)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(fmt::format("open seed {} {} [{}] {}/{} {}", groups.name, groups.host,
                               fmt::join(groups.ports, " "), groups.rank, groups.size,
                               groups.backend));
  thread_.Post([done, ports = seed_ports] { done(ports); });
}

void FakeWeights::SendSeed(std::string name, std::function<void(Result<update::SeedReport>)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back("send seed " + name);
  thread_.Post([done, report = seeded] { done(report); });
}

void FakeWeights::Digests(update::DigestRequest request,
                          std::function<void(Result<update::DigestReport>)> done) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(fmt::format(
      "digests {} {}", request.version ? std::to_string(*request.version) : "-", request.source));
  thread_.Post([done, report = digests] { done(report); });
}

void FakeWeights::Export(std::string name,
                         std::function<void(Result<update::ExportedTensor>)> done) {
  thread_.Post([this, name, done] {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return done(Fail(Code::kNotFound, "no tensor " + name));
    done(found->second);
  });
}

std::vector<std::string> FakeWeights::names() const {
  std::vector<std::string> all;
  all.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) all.push_back(name);
  return all;
}

std::string FakeWeights::model_path() const {
  const std::scoped_lock lock(mutex_);
  return path_;
}

void FakeWeights::Finish(const Status& status) {
  std::vector<std::function<void(const Status&)>> held;
  {
    const std::scoped_lock lock(mutex_);
    held = std::exchange(held_, {});
  }
  std::promise<void> reached;
  thread_.Post([&] {
    for (const auto& end : held) end(status);
    reached.set_value();
  });
  reached.get_future().wait();
}

std::vector<std::string> FakeWeights::calls() {
  const std::scoped_lock lock(mutex_);
  return calls_;
}

void FakeTokenizer::Encode(std::vector<std::string> texts, bool, Encoded done) {
  thread_.Post([this, texts, done, opens = gate] {
    if (opens.valid()) opens.wait();
    if (fault) return done(std::unexpected(*fault));
    std::vector<std::vector<text::TokenId>> tokens;
    tokens.reserve(texts.size());
    for (const std::string& text : texts) tokens.emplace_back(text.begin(), text.end());
    done(tokens);
  });
}

void FakeTokenizer::ApplyChatTemplate(Json messages, Json options, Prompted done) {
  thread_.Post([this, messages, options, done] {
    if (fault) return done(std::unexpected(*fault));
    last_options = options;
    text::ChatPrompt prompt;
    for (const Json& message : *messages.array()) {
      const Json* content = message.Find("content");
      prompt.text += *message.Find("role")->string() + ":" +
                     (content->string() ? *content->string() : "") + ";";
    }
    const bool* answer = std::get_if<bool>(&options.Find("add_generation_prompt")->value());
    if (answer != nullptr && *answer) prompt.text += "assistant:";
    prompt.tokens.assign(prompt.text.begin(), prompt.text.end());
    done(prompt);
  });
}

void FakeExchange::Send(http::Response response) {
  const std::scoped_lock lock(mutex_);
  if (done_ || streaming_) return;
  response_ = std::move(response);
  done_ = true;
  changed_.notify_all();
}

void FakeExchange::BeginStream(int status, std::string content_type) {
  const std::scoped_lock lock(mutex_);
  response_.status = status;
  response_.content_type = std::move(content_type);
  streaming_ = true;
  changed_.notify_all();
}

void FakeExchange::Write(std::string chunk) {
  const std::scoped_lock lock(mutex_);
  if (streaming_ && !done_) response_.body += chunk;
  changed_.notify_all();
}

void FakeExchange::End() {
  const std::scoped_lock lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void FakeExchange::OnDisconnect(std::function<void()> callback) {
  const std::scoped_lock lock(mutex_);
  disconnected_ = std::move(callback);
}

http::Response FakeExchange::Wait() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::seconds(30), [this] { return done_; })) {
    return {.status = 0, .body = "no reply; so far: " + response_.body};
  }
  return response_;
}

bool FakeExchange::answered() {
  const std::scoped_lock lock(mutex_);
  return done_;
}

std::string FakeExchange::written() {
  const std::scoped_lock lock(mutex_);
  return response_.body;
}

void FakeExchange::Disconnect() {
  std::function<void()> callback;
  {
    const std::scoped_lock lock(mutex_);
    callback = std::exchange(disconnected_, nullptr);
  }
  if (callback) callback();
}

std::vector<std::string> FakeExchange::events() {
  const std::string text = written();
  std::vector<std::string> events;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find("\n\n", begin);
    if (end == std::string::npos) break;
    const std::string event = text.substr(begin, end - begin);
    events.push_back(event.starts_with("data: ") ? event.substr(6) : "BAD EVENT: " + event);
    begin = end + 2;
  }
  return events;
}

}  // namespace syncline::serve
