// The memory of an update, offered to a trainer that writes straight into the parameters of a rank
// (transport/transfer_engine.h): where each lies, and when it is open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "transport/transfer_engine.h"
#include "update/transaction.h"

namespace syncline::update {

struct ParameterPlace {
  std::string name;           // the engine's own
  std::uint64_t address = 0;  // in the transfer engine's helper
  // Of the load layout; their product is its bytes. What is smaller than a byte counts in bytes.
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 0;
};

struct WindowInfo {
  std::string session;  // "host:port"
  std::vector<ParameterPlace> parameters;
};

// One thread at a time.
class Window {
 public:
  // Starts the transfer engine. Both must outlive it.
  static base::Result<std::unique_ptr<Window>> Make(const transport::TransferEngineOptions& options,
                                                    model::Model& model, Transaction& transaction);

  // Holds for the window's life. Derived parameters are not in it.
  const WindowInfo& info() const { return info_; }

  // Transaction::Open, then writes are taken. After an error the transaction can only be dropped.
  base::Status Open(base::ThreadPool& pool);
  // Writes are refused. To be called before the transaction is prepared or dropped.
  void Close() { engine_->Close(); }

 private:
  Window(Transaction& transaction, std::unique_ptr<transport::TransferEngine> engine)
      : transaction_(transaction), engine_(std::move(engine)) {}

  Transaction& transaction_;
  std::unique_ptr<transport::TransferEngine> engine_;
  WindowInfo info_;
};

}  // namespace syncline::update
