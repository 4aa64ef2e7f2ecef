// What the stores behind HTTP have in common: reading.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "objects/object_store.h"
#include "objects/transfer.h"

namespace syncline::objects {

class RemoteStore : public ObjectStore {
 public:
  const std::string& url() const override { return shown_; }
  const std::string& local_path() const override { return local_path_; }

  base::Result<ObjectInfo> Stat(const std::string& key, const base::CancelToken* cancel) override;
  base::Status ReadAt(const std::string& key, base::MutableByteSpan into, std::uint64_t offset,
                      const std::string& tag, const std::function<void(std::uint64_t)>& received,
                      const base::CancelToken* cancel) override;
  base::Result<std::string> ReadText(const std::string& key, std::uint64_t limit,
                                     const base::CancelToken* cancel) override;

 protected:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  RemoteStore(std::string shown, const Settings& settings)
      : client_(settings), settings_(settings), shown_(std::move(shown)) {}

  // A GET or HEAD of the object, ready to be sent now.
  virtual Request Read(std::string method, const std::string& key, Headers headers) = 0;
  // The failure that a status other than 2xx is. what: the request, for messages.
  virtual Failure Explain(const std::string& what, const Reply& reply) = 0;

  // One try; a status other than 2xx is a failure.
  Tried<Reply> Send(const Request& request, Receiver* receiver, const base::CancelToken* cancel);
  // The object as messages name it.
  std::string Name(const std::string& key) const { return base::JoinPath(shown_, key); }
  const Settings& settings() const { return settings_; }

 private:
  Client client_;
  Settings settings_;
  std::string shown_;
  std::string local_path_;  // always empty
};

// kInvalidArgument unless `key` is a path inside the store.
base::Status CheckKey(const std::string& store, const std::string& key);
// Likewise for what keys begin with; may be empty or end with '/'.
base::Status CheckPrefix(const std::string& store, const std::string& prefix, bool folders_only);

}  // namespace syncline::objects
