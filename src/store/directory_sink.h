// A store in a directory.
#pragma once

#include <memory>
#include <string>

#include "store/sink.h"

namespace syncline::store {

// Where a store directory keeps what is its own and no version.
std::string OwnDirectory(const std::string& store);

// Makes the directory if it is missing and takes its publisher lock: kLocked if another publisher
// has it (of a fold, likewise its own). Removes what a publisher that died has staged. `files` must
// outlive the sink. `durable`: what is committed is on the device. Not `exclusive`: for a rank that
// only looks, and writes where the one with the lock tells it; the lock and staging are left alone.
base::Result<std::unique_ptr<Sink>> OpenDirectorySink(base::FileSystem& files,
                                                      const std::string& store, bool durable,
                                                      bool exclusive,
                                                      SinkUse use = SinkUse::kPublish);

}  // namespace syncline::store
