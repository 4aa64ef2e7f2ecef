#include "serve/call.h"

#include <exception>
#include <utility>

namespace syncline::serve {

using engine::Engine;

std::shared_ptr<Call> Call::Create(Front& front, std::shared_ptr<http::Exchange> exchange,
                                   std::unique_ptr<Presenter> presenter, CallOptions options) {
  std::shared_ptr<Call> call(
      new Call(front, std::move(exchange), std::move(presenter), std::move(options)));
  call->exchange_->OnDisconnect([&front, weak = std::weak_ptr<Call>(call)] {
    front.worker().Post([weak] {
      if (const auto gone = weak.lock()) gone->Abandon();
    });
  });
  return call;
}

Call::Call(Front& front, std::shared_ptr<http::Exchange> exchange,
           std::unique_ptr<Presenter> presenter, CallOptions options)
    : front_(front),
      exchange_(std::move(exchange)),
      presenter_(std::move(presenter)),
      options_(std::move(options)) {}

void Call::Run(std::vector<engine::Request> requests) {
  if (done_) return;
  if (!options_.group.empty() && front_.groups.contains(options_.group)) {
    const std::string rid = std::exchange(options_.group, {});
    return Reply(400, "rid: \"" + rid + "\" is in use by another request");
  }
  if (const base::Status submitted = Submit(std::move(requests)); !submitted) {
    // Too many wait: the same request is welcome later.
    if (submitted.error().code == base::Code::kLimitExceeded) {
      return Reply(429, submitted.error().message);
    }
    return Fail(submitted.error());
  }
  if (!options_.stream) return;
  streaming_ = true;
  exchange_->BeginStream(200, "text/event-stream");
  Stream(presenter_->Begin(results_));
}

base::Status Call::Submit(std::vector<engine::Request> requests) {
  unfinished_ = requests.size();
  results_.reserve(requests.size());
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    engine::Request& request = requests[i];
    Completion result;
    result.id = request.id;
    result.prompt_tokens = static_cast<std::uint32_t>(request.input_ids.size());
    result.asked_experts = request.experts_from.has_value();
    request.stream = options_.stream;
    SYNCLINE_TRY(front_.engine().Submit(
        std::move(request), [&front = front_, call = shared_from_this(), i](engine::Event event) {
          front.worker().Post(
              [call, i, happened = std::move(event)] { call->OnEvent(i, happened); });
        }));
    front_.meters().prompt_tokens.Add(result.prompt_tokens);
    ids.push_back(result.id);
    results_.push_back(std::move(result));
  }
  if (!options_.group.empty()) front_.groups.emplace(options_.group, std::move(ids));
  return {};
}

void Call::Fail(const base::Error& error) { Reply(Info(error.code).http_status, error.message); }

void Call::OnEvent(std::size_t index, const engine::Event& event) {
  if (done_) return;
  try {
    Completion& result = results_[index];
    Count(result, event);
    result.Add(event);
    result.seconds = Elapsed();
    if (options_.stream) Stream(presenter_->Chunk(result, index, event));
    if (event.finish) OnFinish(index);
  } catch (const std::exception& error) {  // memory ran out, say
    Reply(500, error.what());
  }
}

void Call::Count(const Completion& result, const engine::Event& event) {
  Meters& meters = front_.meters();
  if (options_.stream && result.tokens.empty() && !event.tokens.empty()) {
    meters.first_token_seconds.Observe(Elapsed());
  }
  meters.generated_tokens.Add(event.tokens.size());
  if (!event.finish) return;
  meters.generations.Add();
  meters.cached_tokens.Add(event.cached_tokens);
  if (event.finish->kind == engine::Finish::Kind::kAbort) meters.aborted_generations.Add();
  meters.generation_seconds.Observe(Elapsed());
}

void Call::OnFinish(std::size_t index) {
  --unfinished_;
  const Completion& result = results_[index];
  if (result.aborted() && (!streaming_ || options_.style == ErrorStyle::kOpenAi)) {
    const int status = result.finish->http_status;
    if (status != 0) return Reply(status, result.finish->message);
  }
  if (unfinished_ == 0) Complete();
}

void Call::Stream(const std::vector<base::Json>& events) {
  std::string text;
  for (const base::Json& event : events) text += ServerSentEvent(ToText(event));
  if (!text.empty()) exchange_->Write(std::move(text));
}

void Call::Complete() {
  if (streaming_) {
    Stream(presenter_->End(results_));
    exchange_->Write(std::string(kStreamEnd));
    exchange_->End();
  } else {
    exchange_->Send(JsonReply(presenter_->Whole(results_)));
  }
  Abandon();
}

void Call::Reply(int status, std::string_view message) {
  if (done_) return;
  if (!streaming_) {
    exchange_->Send(Failure(options_.style, status, message));
  } else {
    exchange_->Write(ServerSentEvent(Failure(options_.style, status, message).body));
    exchange_->Write(std::string(kStreamEnd));
    exchange_->End();
  }
  Abandon();
}

void Call::Abandon() {
  if (done_) return;
  done_ = true;
  AbortRest();
  if (!options_.group.empty()) front_.groups.erase(options_.group);
  exchange_.reset();
}

void Call::AbortRest() {
  for (const Completion& result : results_) {
    if (!result.finish) front_.engine().Abort(result.id, Engine::AbortMatch::kExact, "");
  }
}

double Call::Elapsed() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began_;
  return elapsed.count();
}

}  // namespace syncline::serve
