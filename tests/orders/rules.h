// What an engine has to hold and to answer, by the order of the requests alone (docs/http.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orders/server.h"
#include "orders/world.h"
#include "update/selector.h"

namespace syncline::orders {

// What a tensor holds: the number of a version, or something that is not known: noise of a reset, or
// what a checkpoint has left that failed while it was written in place.
inline constexpr int kUnknown = -1;

enum class Fault : std::uint8_t {
  kNone,
  kRefused,  // before the session is looked at: nothing happens
  kWrong,    // when it is read: nothing of it is written
  kTwin,     // when it has been written: a tied tensor that differs
};

// An update from tensors.
struct Message {
  std::vector<std::size_t> tensors;
  int version = 0;
  std::optional<std::string> label;
  std::optional<update::Selector> selector;
  Fault fault = Fault::kNone;
  bool names_matter = true;  // the fault is not seen where no runner is selected
};

class Rules {
 public:
  Rules(const World& world, const Setting& setting);

  // Each says whether the request is a success.
  bool Begin(update::Selector selector, bool sync_base);
  bool End(bool abort);
  bool Update(const Message& message);
  bool Disk(int version, const std::optional<std::string>& label);
  bool BrokenDisk(bool late);
  bool Reset();  // with random values
  // Tensors that were announced did not come.
  void FailSession() {
    if (session_) session_->failed = true;
  }
  void Relabel(const std::string& label);
  void Snapshot() { snapshot_ = live_; }
  // The end of a session could not be made live.
  void EndFailed();
  // A parameter has got the snapshot's bytes.
  void PutBack(std::size_t parameter);

  const std::vector<int>& live() const { return live_; }
  const std::optional<std::vector<int>>& snapshot() const { return snapshot_; }
  // The version that is live as a whole, if there is one.
  std::optional<int> whole() const;
  const std::string& label() const { return label_; }
  bool open() const { return session_.has_value(); }
  bool failed() const { return session_ && session_->failed; }
  std::optional<std::string> pending_label() const;
  bool halves() const { return !open() && waits_; }
  bool lost() const;
  bool writing() const;  // live weights are being written: they cannot be read
  // Nothing is computed, whether generation is paused or not.
  bool held() const;

 private:
  enum class Place : std::uint8_t { kUntouched, kStaged, kInPlace };
  struct State {
    Place place = Place::kUntouched;
    bool lost = false;
    bool prepared = false;
  };
  struct Session {
    update::Selector selector;
    bool sync_base;
    bool loaded = false;
    bool failed = false;
    std::optional<std::string> label;
  };

  bool may_write() const;
  void Touch(std::size_t group);
  void Write(const Message& message);
  bool Selects(update::Selector selector) const { return selector != update::Selector::kDraft; }
  bool IsHalf(std::size_t group) const;
  bool Prepare();  // false: halves wait
  void Commit();
  void Leave(std::size_t group);
  void Drop();
  bool UpdateAlone(const Message& message, update::Selector selector);

  const World& world_;
  const Setting setting_;
  std::vector<int> live_;                     // by tensor
  std::vector<std::optional<int>> came_;      // by tensor
  std::vector<State> groups_;                 // as the world's
  std::optional<std::vector<int>> snapshot_;  // as live_
  std::uint64_t staged_ = 0;                  // bytes
  bool waits_ = false;
  std::optional<Session> session_;
  std::string label_ = "v0";
};

}  // namespace syncline::orders
