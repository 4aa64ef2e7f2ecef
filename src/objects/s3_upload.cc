// An object of more than one part:
//
// 1. The upload is begun; the server gives it an id.
// 2. The parts are sent, each with tries of its own; the server gives each a tag.
// 3. The upload is completed with all tags. That is the commit: the object appears whole. If a try
//    to complete may have been carried out (no good reply came) and the next one finds no such
//    upload, the object itself is asked whether it is the one.
// 4. If anything fails before, the upload is aborted, so that no parts stay, also when the call was
//    cancelled: once, and for a short time only.
#include "objects/s3_upload.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "objects/s3_replies.h"

namespace syncline::objects {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxReply = 1 << 20;
constexpr double kAbortSeconds = 5;

}  // namespace

std::uint64_t PartBytes(std::uint64_t object_bytes) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const std::uint64_t least = (object_bytes + kMaxParts - 1) / kMaxParts;
  return std::max(kSmallestPart, (least + kMiB - 1) / kMiB * kMiB);
}

Status S3Upload::Run() {
  SYNCLINE_ASSIGN(const base::FileInfo info, from_.Stat());
  if (info.size > kMaxObject) {
    return Fail(Code::kLimitExceeded, fmt::format("{} has {} bytes, more than the {} of an object",
                                                  from_.path(), info.size, kMaxObject));
  }
  if (info.size > PartBytes(info.size)) return RunParts(info.size);
  SYNCLINE_TRY(SendRange(0, info.size, 0, ""));
  return {};
}

Status S3Upload::RunParts(std::uint64_t bytes) {
  SYNCLINE_ASSIGN(const std::string upload, Begin());
  const std::uint64_t part_bytes = PartBytes(bytes);
  std::vector<std::string> tags;
  Status status;
  for (std::uint64_t offset = 0; offset < bytes && status; offset += part_bytes) {
    auto tag = SendRange(offset, std::min(part_bytes, bytes - offset), tags.size() + 1, upload);
    if (tag) {
      tags.push_back(*std::move(tag));
    } else {
      status = std::unexpected(std::move(tag).error());
    }
  }
  if (status) status = Complete(upload, tags, bytes);
  if (!status) Abort(upload);
  return status;
}

Result<std::string> S3Upload::Begin() {
  return WithRetries(settings_.retry_seconds, cancel_, [&]() -> Tried<std::string> {
    Request request = bucket_.MakeRequest("POST", key_, {{"uploads", ""}}, {}, Sha256Hex(""));
    request.send_once = true;
    TextReceiver receiver(request.What(), kMaxReply);
    const auto reply = send_(request, &receiver);
    if (!reply) return std::unexpected(reply.error());
    auto id = ParseUploadId(receiver.text());
    if (id) return *std::move(id);
    return FailForGood(Code::kCorrupt, request.What() + ": the reply: " + id.error().message);
  });
}

void S3Upload::Report(std::uint64_t position) {
  if (position <= reported_) return;  // sent again
  if (sent_) sent_(position - reported_);
  reported_ = position;
}

Result<std::string> S3Upload::SendRange(std::uint64_t offset, std::uint64_t bytes, std::size_t part,
                                        const std::string& upload) {
  std::string hash(kUnsignedPayload);
  if (!bucket_.secure()) {
    SYNCLINE_ASSIGN(hash, Sha256HexOfFile(from_, offset, bytes, cancel_));
  }
  S3Bucket::Pairs query;
  if (part > 0) query = {{"partNumber", std::to_string(part)}, {"uploadId", upload}};
  SYNCLINE_ASSIGN(const Reply reply, WithRetries(settings_.retry_seconds, cancel_, [&] {
                    Request request = bucket_.MakeRequest("PUT", key_, query, {}, hash);
                    request.file = &from_;
                    request.file_offset = offset;
                    request.body_bytes = bytes;
                    request.position = [&](std::uint64_t position) { Report(offset + position); };
                    return send_(request, nullptr);
                  }));
  Report(offset + bytes);
  if (part == 0 || !reply.head.Tag().empty()) return reply.head.Tag();
  return Fail(Code::kCorrupt, fmt::format("PUT {}/{}: the server gives no ETag to part {}",
                                          bucket_.shown(), key_, part));
}

Status S3Upload::Complete(const std::string& upload, const std::vector<std::string>& tags,
                          std::uint64_t bytes) {
  const std::string body = CompleteUploadBody(tags);
  bool unknown = false;
  return WithRetries(settings_.retry_seconds, cancel_, [&]() -> Tried<void> {
    Tried<void> done = TryComplete(upload, body);
    if (done) return {};
    if (unknown && done.error().error.code == Code::kNotFound && IsComplete(tags.size(), bytes)) {
      return {};
    }
    unknown |= done.error().outcome_unknown;
    return done;
  });
}

Tried<void> S3Upload::TryComplete(const std::string& upload, const std::string& body) {
  Request request = bucket_.MakeRequest("POST", key_, {{"uploadId", upload}}, {}, Sha256Hex(body));
  request.text = body;
  request.send_once = true;
  TextReceiver receiver(request.What(), kMaxReply);
  const auto reply = send_(request, &receiver);
  if (!reply) return std::unexpected(reply.error());
  const auto error = ParseCompleteUpload(receiver.text());
  if (!error) {
    return FailForGood(Code::kCorrupt, request.What() + ": the reply: " + error.error().message);
  }
  if (!*error) return {};
  Failure failure = bucket_.Explain(request.What(), reply->head, **error);
  failure.outcome_unknown = failure.may_pass;
  return std::unexpected(std::move(failure));
}

bool S3Upload::IsComplete(std::size_t parts, std::uint64_t bytes) {
  const auto reply = send_(bucket_.MakeRequest("HEAD", key_, {}, {}, Sha256Hex("")), nullptr);
  return reply && reply->head.Length() == bytes &&
         reply->head.Tag().ends_with(fmt::format("-{}\"", parts));
}

void S3Upload::Abort(const std::string& upload) {
  Settings settings = settings_;
  settings.connect_seconds = std::min(settings.connect_seconds, kAbortSeconds);
  settings.stall_seconds = std::min(settings.stall_seconds, kAbortSeconds);
  Client client(settings);
  const Request request =
      bucket_.MakeRequest("DELETE", key_, {{"uploadId", upload}}, {}, Sha256Hex(""));
  const auto reply = client.Send(request, nullptr, nullptr);
  const bool done = reply && (reply->head.status < 300 || reply->head.status == 404);
  if (done) return;
  base::Log(base::LogLevel::kWarning,
            fmt::format("{}: an upload could not be aborted; its parts stay in the bucket until "
                        "the upload {} is removed: {}",
                        request.What(), upload,
                        reply ? bucket_.Explain(request.What(), *reply).error.message
                              : reply.error().error.message));
}

}  // namespace syncline::objects
