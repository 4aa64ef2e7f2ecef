#include "model/torch_store.h"

#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <exception>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

namespace syncline::model {
namespace {

// Calls `use` with the store, and makes a Result of what it returns or throws.
template <typename Use>
auto WithStore(const TorchStore& store, const Use& use)
    -> base::Result<decltype(use(std::declval<c10d::TCPStore&>()))> {
  std::string reason;
  try {
    c10d::TCPStoreOptions options;
    options.port = store.port;
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout = store.timeout;
    c10d::TCPStore connected(store.host, options);
    return use(connected);
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return base::Fail(base::Code::kUnavailable,
                    fmt::format("torchrun's store at {}:{}: {}", store.host, store.port, reason));
}

}  // namespace

base::Status PublishText(const TorchStore& store, const std::string& key, const std::string& text) {
  SYNCLINE_TRY(WithStore(store, [&](c10d::TCPStore& connected) {
    connected.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
    return true;
  }));
  return {};
}

base::Result<std::string> AwaitText(const TorchStore& store, const std::string& key) {
  return WithStore(store, [&](c10d::TCPStore& connected) {
    connected.wait({key}, store.timeout);
    const std::vector<std::uint8_t> text = connected.get(key);
    return std::string(text.begin(), text.end());
  });
}

}  // namespace syncline::model
