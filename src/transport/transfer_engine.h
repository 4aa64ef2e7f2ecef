// Memory that others write straight into: an arena behind a transfer engine (Mooncake's, over TCP).
// The engine runs in a helper process, _transfer_engine.py, which maps the arena, so that none of
// its faults is ours.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/error.h"

namespace syncline::transport {

struct TransferEngineOptions {
  std::vector<std::string> command;  // the helper and its arguments
  std::string host = "127.0.0.1";    // address of this host, as peers reach it
  std::chrono::milliseconds timeout{60000};
};

class TransferEngine {
 public:
  // Starts the helper; it maps the whole arena, which must outlive it. kUnavailable, kTimeout: the
  // helper cannot (it says what is missing). Nobody can write yet.
  static base::Result<std::unique_ptr<TransferEngine>> Start(const TransferEngineOptions& options,
                                                             const base::Arena& memory);
  virtual ~TransferEngine() = default;  // ends the helper

  // Under which peers open a session: "host:port".
  virtual const std::string& session() const = 0;
  // Of the arena's first byte, in the helper; what peers write to. Holds for the helper's life.
  virtual std::uint64_t address() const = 0;

  // Until the next Close what peers write reaches the arena; before Open and after Close it is
  // refused, and they are told so. (What is on its way when Close is called may still arrive.) One
  // caller at a time. Both may be called twice. Open fails, with the reason, once the helper is
  // gone: it is not started anew, for peers hold its addresses. Nobody can write then either.
  virtual base::Status Open() = 0;
  virtual void Close() = 0;
};

}  // namespace syncline::transport
