// GET /weights_digest: the digest of every live checkpoint tensor, whatever ranks hold it, and with
// `version` what differs from that version of a store.
#include <charconv>

#include "serve/fields.h"
#include "serve/router.h"
#include "serve/update_fields.h"

namespace syncline::serve {
namespace {

using base::Json;
using base::Result;
using update::DigestReport;

http::Response DigestReply(const DigestReport& report) {
  Json::Object tensors;
  for (const DigestReport::Tensor& tensor : report.tensors) {
    tensors.emplace_back(tensor.name, tensor.digest.Hex());
  }
  Json::Object reply = {{"success", true},
                        {"weight_version", report.weight_version},
                        {"model_path", report.model_path},
                        {"digests", Json(std::move(tensors))},
                        {"derived", NameList(report.derived)}};
  if (!report.comparison) return JsonReply(Json(std::move(reply)));
  const update::DigestComparison& found = *report.comparison;
  const bool equal = found.different.empty() && found.unknown.empty();
  reply.emplace_back("equal", equal);
  reply.emplace_back("compared_with", Json(Json::Object{{"source", found.source},
                                                        {"version", found.version},
                                                        {"identity", found.identity}}));
  reply.emplace_back("equal_tensors", found.equal);
  reply.emplace_back("different", NameList(found.different));
  reply.emplace_back("unknown", NameList(found.unknown));
  return JsonReply(Json(std::move(reply)));
}

// Nothing where it is no number.
std::optional<std::uint64_t> ParseVersion(const std::string& text) {
  std::uint64_t version = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), version);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return version;
}

void Digest(Front& front, const RequestPtr& request, const ExchangePtr& exchange) {
  update::DigestRequest wanted;
  if (const std::string* text = request->Query("version")) {
    wanted.version = ParseVersion(*text);
    if (!wanted.version) {
      return exchange->Send(InvalidRequest(
          ErrorStyle::kSglang, "version: expected a whole number, got " + Describe(Json(*text))));
    }
  }
  if (const std::string* source = request->Query("source")) wanted.source = *source;
  front.disk_worker().Post([&front, exchange, wanted] {
    const base::Status allowed =
        wanted.source.empty() ? base::Status() : front.paths.CheckSource("source", wanted.source);
    if (!allowed) return exchange->Send(Failure(ErrorStyle::kSglang, allowed.error()));
    front.weights().Digests(wanted, [exchange](const Result<DigestReport>& report) {
      exchange->Send(report ? DigestReply(*report) : Failure(ErrorStyle::kSglang, report.error()));
    });
  });
}

}  // namespace

void AddDigestRoute(Router& router, Front& front) {
  router.Add({.methods = {"GET"},
              .path = "/weights_digest",
              .level = Level::kAdminOptional,  // reads a store that the request names
              .handler = [&front](const RequestPtr& request, const ExchangePtr& exchange) {
                Digest(front, request, exchange);
              }});
}

}  // namespace syncline::serve
