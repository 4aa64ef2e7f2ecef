// POST /begin_weight_update, /end_weight_update and /post_process_weights.
//
// They go through the disk worker, as updates from tensors do (tensor_routes.cc), so that requests
// reach update::Weights in the order in which they came.
#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using base::Status;
using update::BeginRequest;
using update::EndRequest;
using update::UpdateReport;

void RunBegin(Front& front, const BeginRequest& request, const std::function<void(Status)>& done) {
  front.weights().Begin(request, [&front, done](const Status& begun) {
    if (begun) front.meters().sessions.Add();
    done(begun);
  });
}

void RunEnd(Front& front, const EndRequest& request,
            const std::function<void(const Result<UpdateReport>&)>& done) {
  front.weights().End(request, [&front, request, done](const Result<UpdateReport>& ended) {
    front.NoteChange();
    Meters& meters = front.meters();
    (ended ? meters.ended_sessions : meters.failed_sessions).Add();
    if (ended && !request.abort) {
      meters.tensor_apply_seconds.Observe(ended->apply_seconds);
      if (ended->unchanged) meters.unchanged_updates.Add();
    }
    done(ended);
  });
}

void Begin(Front& front, const Json& body, const ExchangePtr& exchange) {
  BeginRequest request;
  std::optional<update::Selector> selector;
  Fields fields(body);
  ReadSelector(fields, selector);
  fields.Read("sync_base", request.sync_base);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  request.selector = selector.value_or(request.selector);
  RunBegin(front, request, [exchange, request](const Status& begun) {
    if (!begun) return exchange->Send(Outcome(false, begun.error().message));
    exchange->Send(JsonReply(Json(Json::Object{{"success", true},
                                               {"message", "Success"},
                                               {"selector", update::Name(request.selector)},
                                               {"sync_base", request.sync_base}})));
  });
}

http::Response EndReply(const Front& front, const UpdateReport& report, bool aborted) {
  Json::Object reply = {{"success", true}, {"message", "Success"}, {"aborted", aborted}};
  reply.emplace_back("weight_version", front.engine().stats().weight_version);
  for (auto& field : ReportFields(report)) reply.push_back(std::move(field));
  return JsonReply(Json(std::move(reply)));
}

void End(Front& front, const Json& body, const ExchangePtr& exchange) {
  EndRequest request;
  Fields fields(body);
  fields.Read("abort", request.abort);
  fields.Unsupported("expected_lora_checksums", "this engine has no adapters to check");
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  RunEnd(front, request, [&front, exchange, request](const Result<UpdateReport>& ended) {
    exchange->Send(ended ? EndReply(front, *ended, request.abort)
                         : Outcome(false, ended.error().message));
  });
}

// Older clients call it freely: without a session there is nothing to do.
void EndIfOpen(Front& front, const ExchangePtr& exchange) {
  if (!front.weights().session().open) return exchange->Send(Outcome(true, "Success"));
  RunEnd(front, {}, [exchange](const Result<UpdateReport>& ended) {
    exchange->Send(Outcome(ended.has_value(), ended ? "Success" : ended.error().message));
  });
}

// What slime's patch of SGLang has instead of sessions.
void PostProcess(Front& front, const Json& body, const ExchangePtr& exchange) {
  bool restore = false;
  bool process = false;
  Fields fields(body);
  fields.Read("restore_weights_before_load", restore);
  fields.Read("post_process_quantization", process);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  if (!restore && !process) return exchange->Send(Outcome(true, "Success"));
  if (!restore) return EndIfOpen(front, exchange);
  RunBegin(front, {}, [&front, exchange, process](const Status& begun) {
    if (!begun) return exchange->Send(Outcome(false, begun.error().message));
    if (process) return EndIfOpen(front, exchange);
    exchange->Send(Outcome(true, "Success"));
  });
}

}  // namespace

void AddSessionRoutes(Router& router, Front& front) {
  AddQueuedRoute(router, front, {"POST"}, "/begin_weight_update", Begin, /*update=*/true);
  AddQueuedRoute(router, front, {"POST"}, "/end_weight_update", End, /*update=*/true);
  AddQueuedRoute(router, front, {"POST"}, "/post_process_weights", PostProcess, /*update=*/true);
}

}  // namespace syncline::serve
