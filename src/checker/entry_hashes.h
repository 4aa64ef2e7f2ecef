// The hash of every entry of a runner.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checker/checker.h"
#include "checker/entries.h"
#include "checker/fp8_values.h"

namespace syncline::checker {

// In the order of `entries`, 16 hex digits each. kDevice divides tensors among threads, kSha256 can
// only give each to one. kInternal where OpenSSL failed.
base::Result<std::vector<std::string>> HashEntries(CheckHash kind,
                                                   std::span<const Entry* const> entries,
                                                   AllSlots slots, base::ThreadPool& pool,
                                                   const base::CancelToken& cancel);

}  // namespace syncline::checker
