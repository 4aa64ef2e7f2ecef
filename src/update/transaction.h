// One update of the weights of one runner on one rank: what comes is made ready beside the live
// weights, and becomes live at one stroke.
//
// A group is what becomes live together: a unit of quantised weights, or a parameter that belongs to
// none. A group of which anything has come is either staged, in the second arena, where a failure
// costs nothing, or, where the undo memory is used up, written in place: then no forward may run
// until it is processed, and it cannot be taken back.
//
//   Write       a message, into the load layout. A group that is written in place is restored first
//   Open        all groups, as they are, for others who write straight into the memory
//   Halves      modules of which a part is missing: a weight without its scale
//   Prepare     staged groups: what has not come is filled in from the live weights, then they are
//               processed. In place: processed. Then everything that is derived is derived anew
//   Commit      copies the staged groups over the live ones. Cannot fail
//   Drop        forgets what is staged; processes what was written in place, which is lost
//
// So a session that sends nothing, a half or everything ends at the bytes of a cold load of what was
// sent over what was there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "layout/forms.h"
#include "layout/intake.h"
#include "layout/load.h"

namespace syncline::checkpoint {
class Checkpoint;
}
namespace syncline::model {
class Model;
}

namespace syncline::update {

// One thread at a time. Commit must not run beside a forward, and everything but Find must not run
// beside one while writes_in_place().
class Transaction {
 public:
  // All must outlive it. `undo_memory`: bytes that may be staged.
  Transaction(model::Model& model, const layout::Forms& forms, std::uint64_t undo_memory);

  // What the arrivals of a message are for; writes nothing. As Intake::Find, or with `direct` as
  // Intake::FindParameters.
  base::Result<std::vector<layout::Claim>> Find(std::span<const layout::Arrival> message,
                                                bool direct) const;
  base::Error WhyUnknown(const layout::Arrival& arrival) const {
    return intake_.WhyUnknown(arrival);
  }

  // kNoSpace: the system gives no second arena. After any other error what was touched is lost if
  // it was written in place; the transaction can only be dropped.
  base::Status Write(std::span<const layout::Arrival> message,
                     std::span<const layout::Claim> claims, base::ThreadPool& pool);

  // Takes every group that is not derived, in the load layout and with the values that are live,
  // for somebody else to write straight into window(): from now on nothing is a half, and Prepare
  // takes what lies there. All are staged, or, where a whole update would write in place, all in
  // place: then no forward may run. Before anything has come. kNoSpace as Write.
  base::Status Open(base::ThreadPool& pool);
  // The memory that Open gives away: always the same. Parameters lie in it as Parameters says.
  // kNoSpace.
  base::Result<const base::Arena*> window() const;

  // Does the checkpoint hold every tensor of the runner, and nothing unknown? Reads nothing.
  base::Status Check(const checkpoint::Checkpoint& checkpoint, layout::LoadOptions options) const;
  // Reads a whole checkpoint that has passed Check, instead of messages.
  base::Result<layout::LoadReport> Load(base::FileSystem& files,
                                        const checkpoint::Checkpoint& checkpoint,
                                        base::ThreadPool& pool, const layout::LoadOptions& options);

  // Would a whole update write in place?
  bool may_write_in_place() const;
  bool writes_in_place() const { return in_place_; }

  // "model.layers.0.mlp.down_proj: weight has come without weight_scale_inv"
  std::vector<std::string> Halves() const;

  struct Ready {
    bool came = false;                // something by messages
    bool touched = false;             // something will become live, or is
    bool unchanged = false;           // and it is what was live already
    std::vector<std::string> halves;  // as Halves(): these groups are left as they are, and wait
  };
  base::Result<Ready> Prepare(base::ThreadPool& pool);

  // What is prepared is live afterwards, and the transaction goes on with the groups that wait.
  // Returns the parameters that were written completely: from what came, or derived; of those that
  // were open, which of them its writer changed.
  std::vector<std::size_t> Commit(base::ThreadPool& pool);
  void Drop(base::ThreadPool& pool);

  // With nothing under way: the live bytes are gone, so every tensor is lost.
  void LoseAll();
  // Checkpoint tensors that are lost: they lie in what was written in place, and dropped or failed
  // since, or all are gone. Each stays so until it has been written again, or was open for a writer
  // who ended well (and, where all were gone, has changed).
  std::vector<std::string> Lost() const;

  const layout::IntakeReport& report() const { return intake_.report(); }

 private:
  enum class Place : std::uint8_t { kUntouched, kStaged, kInPlace };
  struct Group {
    std::vector<std::size_t> parameters;
    std::size_t unit = static_cast<std::size_t>(-1);  // none
    std::uint64_t bytes = 0;                          // of its slots
    Place place = Place::kUntouched;
    bool prepared = false;
    std::vector<std::size_t> lost;  // tensors
    bool gone = false;              // lost by LoseAll
    bool open = false;              // others write into it
    bool changed = false;           // of an open one that is prepared
    std::string before;             // of an open one in place: hash of its load layout
  };

  void MakeGroups();
  std::vector<std::size_t> TensorsOf(const Group& group) const;
  base::Status Reserve(std::span<const std::size_t> parameters);
  base::Status Touch(std::size_t group, base::ThreadPool& pool, bool restore);
  base::Status Stage(Group& group);
  void TakeInPlace(Group& group, base::ThreadPool& pool, bool restore);
  void Restore(const Group& group, base::ThreadPool& pool);
  std::string HashOf(const Group& group) const;
  bool Came(const Group& group) const;
  bool DiffersFromLive(const Group& group) const;
  bool IsComplete(const Group& group) const;
  std::vector<std::string> HalvesOf(const Group& group) const;
  void Fill(const Group& group, base::ThreadPool& pool);
  void FillFrom(const Group& group, std::span<const base::MutableByteSpan> source);
  void Process(const Group& group, base::ThreadPool& pool);
  void PrepareGroup(Group& group, base::ThreadPool& pool);
  base::Status Derive();
  bool IsLive(base::ThreadPool& pool) const;
  void Leave(Group& group);
  std::vector<base::MutableByteSpan> SlotsNow() const;

  model::Model& model_;
  const layout::Forms& forms_;
  const std::uint64_t undo_memory_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;               // by parameter
  std::vector<base::MutableByteSpan> targets_;      // by parameter, in the load layout
  std::span<const base::MutableByteSpan> staging_;  // slots; empty: not made yet
  layout::Intake intake_;
  std::vector<std::size_t> ready_;  // parameters to be committed
  std::uint64_t all_bytes_ = 0;     // of all groups
  std::uint64_t staged_bytes_ = 0;
  bool in_place_ = false;
};

}  // namespace syncline::update
