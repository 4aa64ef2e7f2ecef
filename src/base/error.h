// The one error type of the project, and the table that gives each code its exit status, HTTP
// status and Python exception.
//
// Functions that can fail return Result<T> (or Status, which carries no value). A message names the
// thing that is wrong (file, tensor, version, offset) with what was expected and what was found, so
// that it can be shown to a user as it is.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace syncline::base {

// Numbers are exit codes of the command line and part of the Python interface: never renumber.
enum class Code : std::uint8_t {
  kInternal = 1,          // a fault of ours
  kInvalidArgument = 2,   // the request itself makes no sense
  kNotFound = 3,          // a file, tensor or version is not there
  kAlreadyExists = 4,     // something stands where a new thing should go
  kCorrupt = 5,           // bytes do not follow their format
  kChecksumMismatch = 6,  // bytes follow the format but are not the ones that were meant
  kIncompatible = 7,      // well formed, but of a kind that we cannot read
  kOutOfOrder = 8,        // versions do not build on each other
  kLocked = 9,            // another process holds it
  kIo = 10,               // the operating system failed to read or write
  kNoSpace = 11,          // no room left on the device
  kPermissionDenied = 12,
  kTimeout = 13,
  kUnavailable = 14,    // a peer cannot be reached now; trying again later may help
  kLimitExceeded = 15,  // larger than a bound that we were given
  kCancelled = 16,
};

struct CodeInfo {
  Code code;
  std::string_view name;              // as in JSON output and Python's Error.code
  int exit_code;                      // of the command line
  int http_status;                    // of our servers
  std::string_view python_exception;  // class in the package `syncline`
};

// All codes in the order of their numbers.
std::span<const CodeInfo> CodeTable();
const CodeInfo& Info(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

[[nodiscard]] inline std::unexpected<Error> Fail(Code code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

// The same error with "context: " in front of its message.
[[nodiscard]] std::unexpected<Error> Annotate(Error error, std::string_view context);

// The code that an errno value stands for.
Code CodeOfErrno(int error_number);

// "context: <text of errno>", for a failed system call.
[[nodiscard]] std::unexpected<Error> FailErrno(int error_number, std::string_view context);

}  // namespace syncline::base

// SYNCLINE_TRY(expr) returns the error of a failed Status or Result from the calling function.
#define SYNCLINE_TRY(expr) SYNCLINE_TRY_IMPL(SYNCLINE_CONCAT(syncline_status_, __COUNTER__), expr)
#define SYNCLINE_TRY_IMPL(status, expr)                  \
  do {                                                   \
    if (auto status = (expr); !status) {                 \
      return std::unexpected(std::move(status).error()); \
    }                                                    \
  } while (false)

// SYNCLINE_ASSIGN(auto x, expr) declares or assigns x from a Result, or returns its error.
#define SYNCLINE_ASSIGN(target, expr) \
  SYNCLINE_ASSIGN_IMPL(SYNCLINE_CONCAT(syncline_result_, __COUNTER__), target, expr)
#define SYNCLINE_ASSIGN_IMPL(result, target, expr)                \
  auto result = (expr);                                           \
  if (!result) return std::unexpected(std::move(result).error()); \
  target = *std::move(result)
#define SYNCLINE_CONCAT(a, b) SYNCLINE_CONCAT_IMPL(a, b)
#define SYNCLINE_CONCAT_IMPL(a, b) a##b
