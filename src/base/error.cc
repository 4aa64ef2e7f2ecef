#include "base/error.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace syncline::base {
namespace {

constexpr std::array<CodeInfo, 16> kCodes = {{
    {Code::kInternal, "internal", 1, 500, "InternalError"},
    {Code::kInvalidArgument, "invalid_argument", 2, 400, "InvalidArgumentError"},
    {Code::kNotFound, "not_found", 3, 400, "NotFoundError"},
    {Code::kAlreadyExists, "already_exists", 4, 400, "AlreadyExistsError"},
    {Code::kCorrupt, "corrupt", 5, 400, "CorruptError"},
    {Code::kChecksumMismatch, "checksum_mismatch", 6, 400, "ChecksumMismatchError"},
    {Code::kIncompatible, "incompatible", 7, 400, "IncompatibleError"},
    {Code::kOutOfOrder, "out_of_order", 8, 400, "OutOfOrderError"},
    {Code::kLocked, "locked", 9, 409, "LockedError"},
    {Code::kIo, "io", 10, 500, "IoError"},
    {Code::kNoSpace, "no_space", 11, 507, "NoSpaceError"},
    {Code::kPermissionDenied, "permission_denied", 12, 403, "PermissionDeniedError"},
    {Code::kTimeout, "timeout", 13, 504, "TimedOutError"},
    {Code::kUnavailable, "unavailable", 14, 503, "UnavailableError"},
    {Code::kLimitExceeded, "limit_exceeded", 15, 413, "LimitExceededError"},
    {Code::kCancelled, "cancelled", 130, 499, "CancelledError"},
}};

}  // namespace

std::span<const CodeInfo> CodeTable() { return kCodes; }

const CodeInfo& Info(Code code) { return kCodes.at(static_cast<std::size_t>(code) - 1); }

std::unexpected<Error> Annotate(Error error, std::string_view context) {
  error.message = fmt::format("{}: {}", context, error.message);
  return std::unexpected<Error>(std::move(error));
}

Code CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::kNoSpace;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalidArgument;
    default:
      return Code::kIo;
  }
}

std::unexpected<Error> FailErrno(int error_number, std::string_view context) {
  return Fail(CodeOfErrno(error_number),
              fmt::format("{}: {}", context, std::generic_category().message(error_number)));
}

}  // namespace syncline::base
