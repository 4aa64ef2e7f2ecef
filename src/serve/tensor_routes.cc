// POST /update_weights_from_tensor, and /update_weights_from_tensor_raw for one safetensors file.
//
// 1. The request waits for the disk worker: what is done with a large body holds up no connection.
// 2. There the fields are read and the payloads are decoded from base64, all before anything
//    happens.
// 3. update::Weights reads the payloads, as data, and makes their tensors ready or live.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "payload/payload.h"
#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using payload::Format;
using update::TensorUpdate;
using update::UpdateReport;

constexpr char kPayloads[] = "serialized_named_tensors";

struct LoadFormat {
  std::string_view name;
  Format format;
  bool direct;
};
constexpr std::array<LoadFormat, 4> kLoadFormats = {
    {{"auto", Format::kPlain, false},
     {"direct", Format::kPlain, true},
     {"flattened_bucket", Format::kFlattenedBucket, false},
     {"safetensors", Format::kSafetensors, false}}};

struct TensorRequest {
  TensorUpdate update;
  bool abort_all = false;
};

void ReadFormat(Fields& fields, TensorUpdate& update) {
  std::string name = "auto";
  fields.Read("load_format", name);
  const auto* const known = std::ranges::find(kLoadFormats, name, &LoadFormat::name);
  if (known != kLoadFormats.end()) {
    update.format = known->format;
    update.direct = known->direct;
    return;
  }
  constexpr std::size_t kShown = 200;
  const Json given(std::move(name));
  fields.Refuse("load_format",
                fmt::format(R"(expected null, "auto", "direct", "flattened_bucket" or )"
                            R"("safetensors", got {}: no loader of the client's is run here)",
                            given.string()->size() <= kShown ? ToText(given) : Describe(given)));
}

// Of both routes.
void ReadCommon(Fields& fields, TensorRequest& request) {
  fields.Read("weight_version", request.update.weight_version);
  fields.Read("flush_cache", request.update.flush_cache);
  fields.Read("abort_all_requests", request.abort_all);
  ReadSelector(fields, request.update.selector);
}

void ReadPayloads(Fields& fields, TensorUpdate& update) {
  const Json* found = fields.Find(kPayloads);
  if (found == nullptr) return fields.Refuse(kPayloads, "is required");
  const Json::Array* list = found->array();
  if (list == nullptr) {
    return fields.Refuse(
        kPayloads, "expected a list of base64 texts, one for each rank, got " + Describe(*found));
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string* text = (*list)[i].string();
    if (text == nullptr) {
      return fields.Refuse(kPayloads, fmt::format("item {}: Expected base64-encoded bytes, got {}",
                                                  i, Describe((*list)[i])));
    }
    Result<std::vector<std::byte>> bytes = payload::DecodeBase64(*text);
    if (!bytes) {
      return fields.Refuse(kPayloads, fmt::format("item {}: Expected base64-encoded bytes: {}", i,
                                                  bytes.error().message));
    }
    update.payloads.push_back(*std::move(bytes));
  }
}

Result<TensorRequest> ReadRequest(const Json& body) {
  TensorRequest request;
  Fields fields(body);
  ReadCommon(fields, request);
  ReadFormat(fields, request.update);
  bool target_only = false;  // of clients before selectors
  fields.Read("disable_draft_model", target_only);
  if (target_only && !request.update.selector) request.update.selector = update::Selector::kTarget;
  if (fields.status()) ReadPayloads(fields, request.update);
  SYNCLINE_TRY(fields.status());
  return request;
}

Result<TensorRequest> ReadRaw(const http::Request& request) {
  Json::Object query;
  for (const char* name : {"weight_version", "flush_cache", "abort_all_requests", "selector"}) {
    if (const std::string* value = request.Query(name)) query.emplace_back(name, *value);
  }
  const Json all(std::move(query));
  TensorRequest raw;
  Fields fields(all);
  ReadCommon(fields, raw);
  SYNCLINE_TRY(fields.status());
  const base::ByteSpan bytes = base::AsBytes(request.body);
  raw.update.format = Format::kSafetensors;
  raw.update.payloads.emplace_back(bytes.begin(), bytes.end());
  return raw;
}

void Update(Front& front, Result<TensorRequest> request, const ExchangePtr& exchange) {
  if (!request) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, request.error().message));
  }
  if (request->abort_all) front.engine().Abort("", engine::Engine::AbortMatch::kAll, "");
  const std::optional<std::string> label = request->update.weight_version;
  front.weights().FromTensors(std::move(request->update),
                              [&front, exchange, label](const Result<UpdateReport>& result) {
                                exchange->Send(TensorReply(front, result, "Success", label));
                              });
}

void FromTensors(Front& front, const Json& body, const ExchangePtr& exchange) {
  Update(front, ReadRequest(body), exchange);
}

}  // namespace

void AddTensorRoutes(Router& router, Front& front) {
  AddQueuedRoute(router, front, {"POST"}, "/update_weights_from_tensor", FromTensors,
                 /*update=*/true);
  router.Add({.methods = {"POST"},
              .path = "/update_weights_from_tensor_raw",
              .level = Level::kAdminOptional,
              .handler =
                  [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                    front.disk_worker().Post([&front, request, exchange] {
                      Update(front, ReadRaw(*request), exchange);
                    });
                  },
              .update = true});
}

}  // namespace syncline::serve
