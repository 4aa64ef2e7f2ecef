#include "objects/http_store.h"

#include "objects/remote_store.h"

namespace syncline::objects {
namespace {

using base::CancelToken;
using base::Code;
using base::Fail;
using base::Result;
using base::Status;

class HttpStore final : public RemoteStore {
 public:
  HttpStore(Url base, const Settings& settings)
      : RemoteStore(base.Shown(), settings), base_(std::move(base)) {}

  bool can_list() const override { return false; }
  bool can_write() const override { return false; }

  Result<std::vector<ObjectInfo>> List(const std::string&, bool, const CancelToken*) override {
    return Fail(Code::kIncompatible, url() + " cannot be listed: it is an HTTP server");
  }
  Status Put(const std::string& key, base::File&, const std::function<void(std::uint64_t)>&,
             const CancelToken*) override {
    return ReadOnly(key);
  }
  Status PutText(const std::string& key, std::string_view, bool, const CancelToken*) override {
    return ReadOnly(key);
  }
  Status Remove(const std::string& key, const CancelToken*) override { return ReadOnly(key); }

 protected:
  Request Read(std::string method, const std::string& key, Headers headers) override {
    Request request{.method = std::move(method),
                    .url = base_,
                    .headers = std::move(headers),
                    .follow_redirects = true};
    request.url.path =
        base::JoinPath(base_.path.empty() ? "/" : base_.path, PercentEncode(key, true));
    return request;
  }
  Failure Explain(const std::string& what, const Reply& reply) override {
    return StatusFailure(reply.head, what, "");
  }

 private:
  Status ReadOnly(const std::string& key) const {
    return Fail(Code::kIncompatible, Name(key) + " cannot be written: HTTP is read-only here");
  }

  Url base_;
};

}  // namespace

std::unique_ptr<ObjectStore> OpenHttp(Url url, const Settings& settings) {
  return std::make_unique<HttpStore>(std::move(url), settings);
}

}  // namespace syncline::objects
