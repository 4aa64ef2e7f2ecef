// GET|POST /get_weights_by_name (as numbers) and GET /export_weights (as bytes).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "serve/fields.h"
#include "serve/numbers.h"
#include "serve/router.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::ExportedTensor;

constexpr std::uint64_t kMaxNumbers = 16U << 20;  // in one reply

http::Response ByNameFailure(const base::Error& error) {
  return Failure(ErrorStyle::kSglang, 400, "Get parameter by name failed: " + error.message);
}

void GetByName(Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  const Result<Json> body = ParseBody(*request);
  if (!body) return exchange->Send(InvalidRequest(ErrorStyle::kSglang, body.error().message));
  Json::Object all = *body->object();
  for (const char* name : {"name", "truncate_size"}) {
    if (const std::string* value = request->Query(name)) all.emplace_back(name, *value);
  }
  const Json merged(std::move(all));
  Fields fields(merged);
  std::string name;
  std::uint64_t rows = 100;
  fields.Require("name", name);
  fields.Read("truncate_size", rows);
  if (!fields.status()) {
    return exchange->Send(InvalidRequest(ErrorStyle::kSglang, fields.status().error().message));
  }
  front.weights().Export(name, [exchange, rows](const Result<ExportedTensor>& tensor) {
    if (!tensor) return exchange->Send(ByNameFailure(tensor.error()));
    Result<std::string> numbers = NumbersText(*tensor, rows, kMaxNumbers);
    if (!numbers) return exchange->Send(ByNameFailure(numbers.error()));
    exchange->Send({.body = *std::move(numbers)});
  });
}

void ExportTensor(Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  const std::string* name = request->Query("name");
  if (name == nullptr) {
    const std::vector<std::string> names = front.weights().names();
    return exchange->Send(JsonReply(Json(Json::Array(names.begin(), names.end()))));
  }
  front.weights().Export(*name, [exchange](const Result<ExportedTensor>& tensor) {
    if (!tensor) return exchange->Send(Failure(ErrorStyle::kSglang, tensor.error()));
    exchange->Send(
        {.content_type = "application/octet-stream",
         .body = std::string(base::AsText(tensor->bytes)),
         .headers = {{"X-Syncline-Dtype", std::string(tensor::Name(tensor->dtype))},
                     {"X-Syncline-Shape", fmt::format("{}", fmt::join(tensor->shape, ","))}}});
  });
}

}  // namespace

void AddExportRoutes(Router& router, Front& front) {
  for (const char* path : {"/get_weights_by_name", "/get_parameter_by_name"}) {  // an older name
    router.Add({.methods = {"GET", "POST"},
                .path = path,
                .level = Level::kAdminOptional,
                .handler = [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                  GetByName(front, request, exchange);
                }});
  }
  router.Add({.methods = {"GET"},
              .path = "/export_weights",
              .level = Level::kAdminOptional,  // the weights are what is worth stealing
              .handler = [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                ExportTensor(front, request, exchange);
              }});
}

}  // namespace syncline::serve
