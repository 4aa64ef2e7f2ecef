// Reads the live weights of all ranks, from rank 0: tensors by name, digests, checks.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "base/cancel.h"
#include "base/error.h"
#include "base/file.h"
#include "base/worker.h"
#include "engine/engine.h"
#include "update/others.h"
#include "update/rank_weights.h"
#include "update/weights.h"

namespace syncline::update {

// Export is for any thread; the rest for one, the reading thread.
class Readings {
 public:
  // All must outlive it. `plan`: of the target.
  Readings(base::FileSystem& files, engine::Engine& engine, const layout::Plan& plan,
           RankWeights& own, const Others& others, const base::CancelToken& cancel,
           std::string launch_path);

  // As Weights::Export.
  void Export(std::string name, const std::function<void(base::Result<ExportedTensor>)>& done);

  // `source`, `model_path`: see DigestRequest and DigestReport.
  base::Result<DigestReport> Digests(const DigestRequest& request, const std::string& source,
                                     const std::function<std::string()>& model_path);

  base::Result<CheckReport> Check(const CheckRequest& request);

 private:
  struct Begun {
    std::shared_ptr<base::CancelToken> own;
    std::future<Answers> others;
    std::string weight_version;  // of what is read
  };
  using Checks = std::vector<std::vector<RankCheck>>;  // by rank

  base::Result<Begun> Begin(RankMessage kind, const Payload& payload);
  base::Result<DigestReport> SumDigests(const std::function<std::string()>& model_path);
  base::Status Snapshot(const CheckMessage& message);
  base::Status Reset(const CheckMessage& message);
  base::Result<Checks> ReadChecks(RankMessage kind, const CheckMessage& message);
  base::Status Compare(const CheckMessage& message, CheckReport& report);
  base::Result<std::vector<std::string>> PutBack(const CheckMessage& message);
  base::Status Exclusive(const std::function<base::Status()>& work);

  base::FileSystem& files_;
  engine::Engine& engine_;
  const layout::Plan& plan_;
  RankWeights& own_;
  const Others& others_;
  const base::CancelToken& cancel_;
  const std::string launch_path_;
  base::Worker exports_;  // last, so that it ends first
};

}  // namespace syncline::update
