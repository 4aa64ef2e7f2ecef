// Starts an engine with the live weights of another one (--seed-from): asks it for them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "serve/auth.h"
#include "tensor/dtype.h"
#include "update/weights.h"

namespace syncline::serve {

struct SeedInfo {
  std::string fingerprint;  // of software, division and config.json
  std::string layout;       // update::RankWeights::Layout
  std::map<std::string, tensor::Dtype, std::less<>> dtypes;  // of checkpoint tensors
};

// For model::ModelOptions. A tensor that the seed does not name has the type of most: what is
// missing is seen by the layout.
std::function<tensor::Dtype(std::string_view)> DtypesOf(const SeedInfo& info);

class SeedClient {
 public:
  // kInvalidArgument: no URL "http://HOST:PORT". The keys of this engine are sent.
  static base::Result<SeedClient> Make(const std::string& url, const Keys& keys);

  // Of an engine that has started. kIncompatible unless its fingerprint is `own`.
  base::Result<SeedInfo> Ask(const std::string& own) const;

  // Copies the weights to all ranks, and the label. kIncompatible unless both are laid out alike;
  // whatever fails names the seed. What came before is then in the parameters.
  base::Status Take(update::Weights& weights, const SeedInfo& info) const;

 private:
  SeedClient(std::string url, std::string host, std::string key)
      : url_(std::move(url)), host_(std::move(host)), key_(std::move(key)) {}
  base::Result<base::Json> Call(const std::string& method, const std::string& path,
                                const base::Json& body) const;
  base::Result<update::SeedGroups> OpenGroups() const;
  base::Result<update::SeedReport> AskToSend(const std::string& group) const;

  std::string url_;
  std::string host_;
  std::string key_;
};

}  // namespace syncline::serve
