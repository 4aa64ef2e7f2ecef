// The key-value store that torchrun runs for the processes that it starts (c10d's TCPStore).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace syncline::model {

struct TorchStore {
  std::string host;
  std::uint16_t port = 0;
  std::chrono::milliseconds timeout{60000};  // of connecting and of waiting for a key
};

// kUnavailable with the library's message.
base::Status PublishText(const TorchStore& store, const std::string& key, const std::string& text);
// Waits until it is published.
base::Result<std::string> AwaitText(const TorchStore& store, const std::string& key);

}  // namespace syncline::model
