// Ways to disturb one run of a program, and what it may answer then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/cancel.h"
#include "base/faulty_file_system.h"
#include "torture/world.h"

namespace syncline::torture {

enum class Fault {
  kKill,        // the process dies at some operation
  kPower,       // the machine does
  kError,       // one operation fails
  kFullDisk,    // from some operation on nothing more fits
  kDeadDevice,  // from some operation on everything fails, as long as the process lives
  kShortRead,   // one read ends early
  kShortWrite,  // one write ends early
  kFlip,        // one read has a wrong bit
  kCancel,      // somebody presses Ctrl-C
};
std::string_view Name(Fault fault);

// What a run asks of the files.
struct Counts {
  std::uint64_t operations = 0;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
};
// Of a run without disturbance, which must succeed.
base::Result<Counts> CountOperations(base::FileSystem& files,
                                     const std::function<base::Status(base::FileSystem&)>& run);

// The files of one disturbed run; the fault comes at a random moment of it.
class Disturbed {
 public:
  Disturbed(World& world, Fault fault, const Counts& counts);

  base::FileSystem& files() { return files_; }
  const base::CancelToken* cancel() const { return &cancel_; }
  // Has the run ended like a process that is no more?
  bool died() const;
  // Is that an error which the fault explains?
  base::Status CheckError(const base::Error& error) const;
  // To be called when the run is over.
  base::Status Finish();

 private:
  void FailOne(const Counts& counts);
  void FailFrom(const Counts& counts);
  void FlipOne(const Counts& counts);
  void CancelAt(const Counts& counts);

  World& world_;
  Fault fault_;
  base::FaultyFileSystem files_;
  base::CancelToken cancel_;
};

}  // namespace syncline::torture
