// A replica that is read: locked against pulls, at a version that its marker names.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/file.h"
#include "replica/state.h"

namespace syncline::update {

class ReplicaReading {
 public:
  // Takes the lock shared. kOutOfOrder if no whole version is there. Of a directory that is no
  // replica: nothing is locked or compared.
  static base::Result<ReplicaReading> Begin(base::FileSystem& files, const std::string& path,
                                            const base::CancelToken& cancel);

  // kOutOfOrder if the replica has changed since Begin: a program that does not know the lock may
  // have done so.
  base::Status End() const;

  // "version 7 (identity 12ab…)"; empty where it is no replica.
  base::Result<std::string> Held() const;

 private:
  ReplicaReading(base::FileSystem& files, const std::string& path) : state_(files, path) {}

  replica::ReplicaState state_;
  bool is_replica_ = false;
  std::unique_ptr<base::FileLock> lock_;
  std::optional<replica::Marker> marker_;
};

}  // namespace syncline::update
