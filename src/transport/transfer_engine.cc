#include "transport/transfer_engine.h"

#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "transport/helper_process.h"

namespace syncline::transport {
namespace {

using base::Code;
using base::Fail;
using base::Json;
using base::Result;
using base::Status;

constexpr std::chrono::milliseconds kAnswerTimeout(10000);

class Helper : public TransferEngine {
 public:
  Helper(std::unique_ptr<HelperProcess> process, std::string session, std::uint64_t address)
      : process_(std::move(process)), session_(std::move(session)), address_(address) {}

  const std::string& session() const override { return session_; }
  std::uint64_t address() const override { return address_; }

  Status Open() override {
    SYNCLINE_TRY(Say("open"));
    open_ = true;
    return {};
  }
  void Close() override {
    if (!std::exchange(open_, false)) return;
    // A helper that does not answer has been ended by the attempt, and takes nothing any more.
    if (const Status closed = Say("close"); !closed) {
      base::Log(base::LogLevel::kWarning, closed.error().message);
    }
  }

 private:
  Status Say(const char* what) {
    const Result<Json> answer = process_->Ask(Json::Object{{"do", what}}, kAnswerTimeout, nullptr);
    if (!answer) return std::unexpected(answer.error());
    return {};
  }

  std::unique_ptr<HelperProcess> process_;
  const std::string session_;
  const std::uint64_t address_;
  bool open_ = false;
};

}  // namespace

Result<std::unique_ptr<TransferEngine>> TransferEngine::Start(const TransferEngineOptions& options,
                                                              const base::Arena& memory) {
  SYNCLINE_ASSIGN(std::unique_ptr<HelperProcess> process,
                  HelperProcess::Start(options.command, "transfer engine"));
  SYNCLINE_ASSIGN(const Json answer,
                  process->Ask(Json::Object{{"do", "serve"},
                                            {"memory", SharedName(memory.descriptor())},
                                            {"bytes", std::uint64_t{memory.bytes().size()}},
                                            {"host", options.host}},
                               options.timeout, nullptr));
  const Json* session = answer.Find("session");
  const Json* address = answer.Find("address");
  if (session == nullptr || session->string() == nullptr || address == nullptr ||
      address->unsigned_integer() == nullptr) {
    return Fail(Code::kInternal, "transfer engine: answered without session and address");
  }
  return std::make_unique<Helper>(std::move(process), *session->string(),
                                  *address->unsigned_integer());
}

}  // namespace syncline::transport
