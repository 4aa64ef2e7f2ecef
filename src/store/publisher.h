// The trainer's side of a store: turns each set of weights into the next version.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/components.h"
#include "store/baseline.h"
#include "store/directory_sink.h"
#include "store/manifest.h"
#include "store/rank_group.h"
#include "store/signature.h"
#include "store/sink.h"
#include "store/version.h"
#include "tensor/arrivals.h"
#include "tensor/digest.h"
#include "tensor/loader.h"
#include "tensor/view.h"

namespace syncline::store {

struct PublisherOptions {
  delta::EncodingChoice encoding;
  std::string companions_from;  // directory whose other files (configuration, tokenizer …) go into
                                // full versions and copies
  std::string signing_key;      // PEM file of the private key; empty: versions are not signed
  // A delta also carries a full copy once the deltas since the last full version or copy, itself
  // included, have this share of the model's bytes. 0: never.
  double full_copy_ratio = 0;
  bool durable = true;  // a version that is announced is on the device
  // Called when a version stands, with its number and its path or URL. Its error is the call's, and
  // the version stands nevertheless.
  std::function<base::Status(std::uint64_t version, const std::string& url)> after_publish;
  // Several processes of one trainer, each with its own tensors, make each version together. All of
  // them open a publisher and call Publish the same number of times; each call has one outcome for
  // all. Rank 0 decides on the number and the kind.
  RankOptions ranks;
  // Of several ranks: makes `baseline` hold those of the named tensors that version `version` has.
  // Called when a rank publishes a delta on a version that it does not hold; null: it fails then (of
  // rank 0: the version is a full one).
  std::function<base::Status(std::uint64_t version, std::span<const std::string> names,
                             Baseline& baseline, const base::CancelToken* cancel)>
      load_baseline;
  std::size_t threads = 0;     // 0: one for each processor
  std::string work_directory;  // of a store that is no directory: where a version is made before it
                               // is uploaded; empty: below $TMPDIR
  objects::Settings objects;   // of such a store
};

// Totals of a model.
struct ModelTotals {
  std::uint64_t tensors_total = 0;
  std::uint64_t elements = 0;
  std::uint64_t full_bytes = 0;
};

struct PublishReport {
  std::uint64_t version = 0;
  std::optional<std::uint64_t> base_version;  // nothing: a full version
  bool full_copy = false;                     // a delta that carries a full copy too
  std::string identity;                       // SHA-256 of the manifest
  std::string url;                            // path or URL of the version
  std::uint64_t tensors = 0;
  std::uint64_t tensors_changed = 0;
  std::uint64_t elements = 0;
  std::uint64_t elements_changed = 0;
  std::uint64_t bytes = 0;       // of all files of the version
  std::uint64_t full_bytes = 0;  // of all tensors
  double seconds = 0;

  double density() const {
    return elements == 0 ? 0
                         : static_cast<double>(elements_changed) / static_cast<double>(elements);
  }
};

// One thread at a time. Holds the publisher lock of a directory: a second publisher there fails with
// kLocked. In a bucket the commit of the second one fails with kAlreadyExists.
class Publisher {
 public:
  // `store`: a directory, made if it is missing, or s3://bucket/prefix. It has `last_version` (see
  // last_version()) or is empty; `baseline` holds its tensors, or those of version 0 where version 0
  // is a checkpoint that both sides have already (based_at_zero). Without a baseline the first
  // version is full.
  static base::Result<Publisher> Open(base::FileSystem& files, const std::string& store,
                                      std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                      PublisherOptions options);

  // The same on a sink that is open already.
  static base::Result<Publisher> Open(base::FileSystem& files, std::unique_ptr<Sink> sink,
                                      std::unique_ptr<Baseline> baseline, bool based_at_zero,
                                      PublisherOptions options);

  // The newest version that stands; nothing before the first.
  std::optional<std::uint64_t> last_version() const { return last_version_; }

  // False before the first version, also on a base of its own.
  bool holds_versions() const { return holds_versions_; }

  // Publishes all tensors of the model. `version`: nothing = the next one. The first version of a
  // store without baseline, or `full`, is a full one; any other is the delta against the last
  // version and must be the next number. Tensors must have the names, dtypes and shapes of the
  // baseline, unless full; a name may stand several times with the same bytes.
  //
  // `loader`: gives the bytes of `tensors` (which are in the order of their names) where those are
  // not in memory; kInvalidArgument with a baseline that copies them, or several ranks.
  //
  // The baseline moves only when the version stands; after a failure the next call covers what this
  // one did not. An error whose message says "version N stands" came after the commit. Where it
  // left the baseline behind, the next version is a full one.
  base::Result<PublishReport> Publish(std::optional<std::uint64_t> version,
                                      std::vector<tensor::TensorView> tensors, bool full,
                                      base::Progress& progress,
                                      const base::CancelToken* cancel = nullptr,
                                      const tensor::Loader* loader = nullptr);

  // Of what the next delta is made of: the tensors of the last version, by name. Empty: there is none.
  std::span<const tensor::TensorView> held() const { return baseline_->tensors(); }

  // Can the next version be made of tensors that come one after the other? True for a compact delta of
  // a single rank, unless a full copy is due, or the last call left something to be settled first.
  bool can_take_arriving() const;

  // Publish for tensors that come one after the other, by their index in held(), and are read as they
  // come: beside the baseline only what changed is kept. kInvalidArgument unless can_take_arriving(),
  // or where a tensor does not come, or comes twice.
  base::Result<PublishReport> PublishArriving(std::optional<std::uint64_t> version,
                                              tensor::Arrivals& arrivals, base::Progress& progress,
                                              const base::CancelToken* cancel = nullptr);

 private:
  struct Work;

  Publisher() = default;

  void TakeOver(const NewestVersion& newest);
  // Finds out what became of a commit whose answer was lost, and gets the baseline back if it can.
  base::Status Settle(const base::CancelToken* cancel);
  base::Result<std::uint64_t> ChooseVersion(std::optional<std::uint64_t> asked, bool full) const;
  base::Status WriteFiles(Work& work);
  base::Status WriteFullCopy(Work& work);
  bool CopyDue(std::uint64_t chain_bytes, std::uint64_t full_bytes) const;
  // From the checks of the number on, of one rank.
  base::Result<PublishReport> PublishAlone(Work work);
  base::Status HashFull(Work& work);
  base::Status HashFiles(Work& work);
  base::Status Commit(Work& work);
  base::Status CallAfter(std::uint64_t version) const;
  void StartManifest(Work& work, std::uint64_t version);
  PublishReport Report(Work& work) const;

  // Of several ranks: publisher_ranks.cc.
  struct Split;
  base::Result<PublishReport> Lead(Work work, std::optional<std::uint64_t> asked);
  base::Status LeadAttempts(Work& work);
  base::Status Survey(Work& work);
  base::Status Merge(Work& work, std::vector<RankPart>& parts);
  base::Status WriteFullIndexes(Work& work, std::string_view folder,
                                const std::vector<std::pair<std::string, std::string>>& map,
                                const checkpoint::Stems& components);
  base::Status WriteIndex(Work& work, std::string_view folder, std::string_view stem,
                          base::Json::Object metadata,
                          std::vector<std::pair<std::string, std::string>> map);
  base::Status FinishRanks(Work& work, const Announcement& announcement);
  base::Result<PublishReport> Follow(Work work);
  base::Result<std::optional<ReadManifestResult>> FollowAttempt(Work& work,
                                                                const Announcement& announcement);
  base::Result<std::optional<ReadManifestResult>> FindOwn(std::uint64_t version,
                                                          const RankPart& part);
  Split SplitTensors(std::span<const tensor::TensorView> tensors,
                     const Announcement& announcement) const;
  base::Result<RankPart> MakePart(Work& work, const Announcement& announcement);
  base::Status WriteDeltaPart(Work& work, const Announcement& announcement, const Split& split,
                              RankPart& part);
  base::Status EnsureBaseline(std::uint64_t version, std::span<const tensor::TensorView> tensors,
                              const base::CancelToken* cancel);
  std::unexpected<base::Error> Differ(const std::string& name, std::uint64_t rank,
                                      const ManifestTensor& of_owner,
                                      const ManifestTensor& of_rank) const;

  base::FileSystem* files_ = nullptr;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<Baseline> baseline_;
  PublisherOptions options_;
  std::optional<SigningKey> key_;
  std::unique_ptr<base::ThreadPool> pool_;
  std::optional<std::uint64_t> last_version_;
  bool holds_versions_ = false;
  std::string run_;
  std::string parent_;                      // identity of last_version_; empty: it has no manifest
  std::uint64_t chain_bytes_ = 0;           // Manifest::chain_bytes of last_version_
  bool stale_ = false;                      // the baseline is not last_version_
  std::optional<Latest> unsure_;            // a commit whose outcome is not known
  std::optional<ModelTotals> last_totals_;  // of last_version_, if it has a manifest

  // Of several ranks.
  std::optional<RankGroup> group_;
  std::optional<std::uint64_t> held_;                       // version of the baseline
  std::vector<std::optional<tensor::Digest>> digests_;      // of its tensors, or empty
  std::vector<std::string> surveyed_;                       // RankPart::names_hash by rank
  std::map<std::uint64_t, std::vector<std::string>> skip_;  // Announcement::skip
  std::map<std::string, std::uint64_t> owners_;             // who writes each tensor
  std::uint64_t last_delta_bytes_ = 0;
};

}  // namespace syncline::store
