#include "objects/remote_store.h"

#include <fmt/format.h>

#include "objects/range_receiver.h"

namespace syncline::objects {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

base::Status CheckKey(const std::string& store, const std::string& key) {
  if (base::IsInsidePath(key)) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("'{}' is no name of an object in {}: names are relative paths without "
                          "'.', '..' and empty parts",
                          key, store));
}

base::Status CheckPrefix(const std::string& store, const std::string& prefix, bool folders_only) {
  if (prefix.empty()) return {};
  if (folders_only && !prefix.ends_with('/')) {
    return Fail(Code::kInvalidArgument,
                fmt::format("'{}' is no folder of {}: it does not end with '/'", prefix, store));
  }
  return CheckKey(store, prefix.ends_with('/') ? prefix.substr(0, prefix.size() - 1) : prefix);
}

Tried<Reply> RemoteStore::Send(const Request& request, Receiver* receiver,
                               const CancelToken* cancel) {
  Tried<Reply> reply = client_.Send(request, receiver, cancel);
  if (!reply || (reply->head.status >= 200 && reply->head.status < 300)) return reply;
  return std::unexpected(Explain(request.What(), *reply));
}

Result<ObjectInfo> RemoteStore::Stat(const std::string& key, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(shown_, key));
  SYNCLINE_ASSIGN(const Reply reply, WithRetries(settings_.retry_seconds, cancel, [&] {
                    return Send(Read("HEAD", key, {}), nullptr, cancel);
                  }));
  if (!reply.head.Length()) {
    return Fail(Code::kIncompatible, Name(key) + ": the server does not say its size");
  }
  return ObjectInfo{.key = key, .bytes = *reply.head.Length(), .tag = reply.head.Tag()};
}

Status RemoteStore::ReadAt(const std::string& key, base::MutableByteSpan into, std::uint64_t offset,
                           const std::string& tag,
                           const std::function<void(std::uint64_t)>& received,
                           const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(shown_, key));
  if (into.empty()) return {};
  if (offset + into.size() < offset) {
    return Fail(Code::kInvalidArgument, Name(key) + ": a range beyond 64 bits");
  }
  RangeReceiver receiver(Name(key), into, offset, tag, received);
  Retry retry(settings_.retry_seconds, cancel);
  while (!receiver.complete()) {
    const std::uint64_t before = receiver.done();
    Headers headers = {{"Range", receiver.RangeHeader()}};
    // A weak tag never matches (RFC 9110 §13.1.1); the receiver compares it itself.
    if (!receiver.tag().empty() && !receiver.tag().starts_with("W/")) {
      headers.emplace_back("If-Match", receiver.tag());
    }
    const Tried<Reply> reply =
        client_.Send(Read("GET", key, std::move(headers)), &receiver, cancel);
    if (receiver.done() > before) retry.Progressed();
    Tried<void> result;
    if (!reply) {
      result = std::unexpected(reply.error());
    } else if (const auto error = receiver.ErrorOf(reply->head)) {
      result = FailForGood(*error);
    } else if (reply->head.status < 200 || reply->head.status >= 300) {
      result = std::unexpected(Explain("GET " + Name(key), *reply));
    } else {
      result = receiver.OnEnd();
    }
    if (!result) SYNCLINE_TRY(retry.After(result.error()));
  }
  return {};
}

Result<std::string> RemoteStore::ReadText(const std::string& key, std::uint64_t limit,
                                          const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(shown_, key));
  return WithRetries(settings_.retry_seconds, cancel, [&]() -> Tried<std::string> {
    TextReceiver receiver(Name(key), limit);
    const Tried<Reply> reply = Send(Read("GET", key, {}), &receiver, cancel);
    if (!reply) return std::unexpected(reply.error());
    if (reply->head.status == 200) return std::move(receiver.text());
    return FailForGood(Code::kIncompatible, fmt::format("{}: the server answers {} to a GET",
                                                        Name(key), reply->head.status));
  });
}

}  // namespace syncline::objects
