#include "objects/s3_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "objects/remote_store.h"
#include "objects/s3_replies.h"
#include "objects/s3_upload.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::uint64_t kMaxPage = 8 << 20;  // twice 1000 keys of 1 KiB, percent-encoded
// So that a server that always has another page comes to an end.
constexpr std::size_t kMaxPages = 100'000;
constexpr std::size_t kMaxListed = 5'000'000;

class S3Store final : public RemoteStore {
 public:
  S3Store(S3Bucket bucket, const Settings& settings)
      : RemoteStore(bucket.shown(), settings), bucket_(std::move(bucket)) {}

  bool can_list() const override { return true; }
  bool can_write() const override { return true; }

  Result<std::vector<ObjectInfo>> List(const std::string& prefix, bool folders_only,
                                       const CancelToken* cancel) override;
  Status Put(const std::string& key, base::File& from,
             const std::function<void(std::uint64_t)>& sent, const CancelToken* cancel) override;
  Status PutText(const std::string& key, std::string_view text, bool if_absent,
                 const CancelToken* cancel) override;
  Status Remove(const std::string& key, const CancelToken* cancel) override;

 protected:
  Request Read(std::string method, const std::string& key, Headers headers) override {
    return bucket_.MakeRequest(std::move(method), key, {}, std::move(headers), Sha256Hex(""));
  }
  Failure Explain(const std::string& what, const Reply& reply) override {
    return bucket_.Explain(what, reply);
  }

 private:
  Result<ListPage> ListOne(const S3Bucket::Pairs& query, const CancelToken* cancel);
  Status AddPage(ListPage page, bool folders_only, std::vector<ObjectInfo>& found) const;

  S3Bucket bucket_;
};

Result<ListPage> S3Store::ListOne(const S3Bucket::Pairs& query, const CancelToken* cancel) {
  return WithRetries(settings().retry_seconds, cancel, [&]() -> Tried<ListPage> {
    Request request = bucket_.MakeRequest("GET", "", query, {}, Sha256Hex(""));
    request.shown += " (list)";
    TextReceiver receiver(request.What(), kMaxPage);
    const auto reply = Send(request, &receiver, cancel);
    if (!reply) return std::unexpected(reply.error());
    auto page = ParseListPage(receiver.text());
    if (page) return *std::move(page);
    return FailForGood(Code::kCorrupt, request.What() + ": the reply: " + page.error().message);
  });
}

// Takes what lies below our prefix and is an object or folder by our rules.
Status S3Store::AddPage(ListPage page, bool folders_only, std::vector<ObjectInfo>& found) const {
  const std::string& prefix = bucket_.prefix();
  const auto foreign = [&](const std::string& key) {
    return Fail(Code::kCorrupt, fmt::format("GET {} (list): the server lists '{}', which does not "
                                            "begin with what was asked for",
                                            url(), key));
  };
  if (!folders_only) {
    for (ObjectInfo& object : page.objects) {
      if (!object.key.starts_with(prefix)) return foreign(object.key);
      object.key.erase(0, prefix.size());
      // Others may write keys that are no paths; consoles make "folder/" objects.
      if (base::IsInsidePath(object.key)) found.push_back(std::move(object));
    }
    return {};
  }
  for (std::string& folder : page.folders) {
    if (!folder.starts_with(prefix)) return foreign(folder);
    folder.erase(0, prefix.size());
    if (folder.ends_with('/') && base::IsInsidePath(folder.substr(0, folder.size() - 1))) {
      found.push_back({.key = std::move(folder)});
    }
  }
  return {};
}

Result<std::vector<ObjectInfo>> S3Store::List(const std::string& prefix, bool folders_only,
                                              const CancelToken* cancel) {
  SYNCLINE_TRY(CheckPrefix(url(), prefix, folders_only));
  std::vector<ObjectInfo> found;
  std::string token;
  for (std::size_t pages = 0; pages < kMaxPages && found.size() <= kMaxListed; ++pages) {
    S3Bucket::Pairs query = {
        {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", bucket_.prefix() + prefix}};
    if (folders_only) query.emplace_back("delimiter", "/");
    if (!token.empty()) query.emplace_back("continuation-token", token);
    SYNCLINE_ASSIGN(ListPage page, ListOne(query, cancel));
    const std::string next = page.next;
    SYNCLINE_TRY(AddPage(std::move(page), folders_only, found));
    if (next.empty()) {
      std::ranges::sort(found, {}, &ObjectInfo::key);
      return found;
    }
    if (next == token) {
      return Fail(Code::kCorrupt,
                  fmt::format("GET {} (list): the server gives the same page again", url()));
    }
    token = next;
  }
  return Fail(Code::kLimitExceeded, fmt::format("GET {} (list): more than {} objects or {} pages",
                                                url(), kMaxListed, kMaxPages));
}

Status S3Store::Put(const std::string& key, base::File& from,
                    const std::function<void(std::uint64_t)>& sent, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(url(), key));
  const S3Upload::Sender send = [&](const Request& request, Receiver* receiver) {
    return Send(request, receiver, cancel);
  };
  return S3Upload(bucket_, settings(), send, key, from, sent, cancel).Run();
}

Status S3Store::PutText(const std::string& key, std::string_view text, bool if_absent,
                        const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(url(), key));
  const std::string hash = Sha256Hex(text);
  S3Bucket::Pairs headers;
  if (if_absent) headers.emplace_back("If-None-Match", "*");
  // Whether an earlier try may have been carried out.
  bool unknown = false;
  SYNCLINE_TRY(WithRetries(settings().retry_seconds, cancel, [&] {
    Request request = bucket_.MakeRequest("PUT", key, {}, headers, hash);
    request.text = text;
    request.send_once = if_absent;
    Tried<Reply> reply = Send(request, nullptr, cancel);
    if (reply || !if_absent) return reply;
    base::Error& error = reply.error().error;
    if (error.code == Code::kOutOfOrder) {  // 412
      // Is it ours, from the try before? Then it is written.
      const auto there = unknown ? ReadText(key, text.size(), cancel) : Result<std::string>();
      if (unknown && there && *there == text) return Tried<Reply>();
      error = {Code::kAlreadyExists, Name(key) + " is there already"};
    } else if (reply.error().status == 501) {
      error.message +=
          "; the server does not support PUT with If-None-Match, which is needed to "
          "write only what is not there";
    }
    unknown |= reply.error().outcome_unknown;
    return reply;
  }));
  return {};
}

Status S3Store::Remove(const std::string& key, const CancelToken* cancel) {
  SYNCLINE_TRY(CheckKey(url(), key));
  const auto removed = WithRetries(settings().retry_seconds, cancel, [&] {
    return Send(bucket_.MakeRequest("DELETE", key, {}, {}, Sha256Hex("")), nullptr, cancel);
  });
  if (removed || removed.error().code == Code::kNotFound) return {};
  return std::unexpected(removed.error());
}

}  // namespace

std::unique_ptr<ObjectStore> OpenS3(S3Bucket bucket, const Settings& settings) {
  return std::make_unique<S3Store>(std::move(bucket), settings);
}

}  // namespace syncline::objects
