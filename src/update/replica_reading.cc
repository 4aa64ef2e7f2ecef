#include "update/replica_reading.h"

#include <fmt/core.h>

namespace syncline::update {

using base::Code;
using base::Fail;

base::Result<ReplicaReading> ReplicaReading::Begin(base::FileSystem& files, const std::string& path,
                                                   const base::CancelToken& cancel) {
  ReplicaReading reading(files, path);
  SYNCLINE_ASSIGN(reading.is_replica_, reading.state_.IsReplica());
  if (!reading.is_replica_) return reading;
  SYNCLINE_ASSIGN(reading.lock_, reading.state_.Lock(base::LockMode::kShared, &cancel));
  SYNCLINE_ASSIGN(reading.marker_, reading.state_.ReadMarker());
  if (!reading.marker_) {
    return Fail(Code::kOutOfOrder,
                fmt::format("{}: this replica holds no whole version (its marker is missing); "
                            "pull it again",
                            path));
  }
  return reading;
}

base::Status ReplicaReading::End() const {
  if (!is_replica_) return {};
  SYNCLINE_ASSIGN(const std::optional<replica::Marker> marker, state_.ReadMarker());
  if (marker == marker_) return {};
  return Fail(Code::kOutOfOrder,
              fmt::format("{}: the replica was at version {} and changed while it was read",
                          state_.directory(), marker_->version));
}

base::Result<std::string> ReplicaReading::Held() const {
  if (!is_replica_) return "";
  SYNCLINE_ASSIGN(const std::optional<replica::Head> head, state_.ReadHead());
  const bool ours = head && head->held.version == marker_->version &&
                    head->held.token == marker_->token && !head->held.identity.empty();
  return fmt::format("version {}{}", marker_->version,
                     ours ? fmt::format(" (identity {})", head->held.identity.substr(0, 16)) : "");
}

}  // namespace syncline::update
