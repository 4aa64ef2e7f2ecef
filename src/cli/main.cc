// The `syncline` command: parses the command line, runs one subcommand, prints what it says, and
// exits by the error table.
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "base/bytes.h"
#include "cli/command.h"

namespace syncline::cli {
namespace {

base::CancelToken cancel_token;

// The first Ctrl-C (or SIGTERM) ends the work at the next safe point; the second one kills.
void OnSignal(int number) {
  cancel_token.Cancel();
  signal(number, SIG_DFL);
}

// One line on a terminal, rewritten: phase, share, rate, time left.
class TerminalProgress {
 public:
  void Report(std::string_view phase, std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (phase != phase_ || done == 0) {
      phase_ = phase;
      begin_ = now;
    }
    if (done < total && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    std::string line = fmt::format("{} {}", phase, base::HumanBytes(done));
    if (total > 0)
      line += fmt::format(" of {} ({} %)", base::HumanBytes(total), done * 100 / total);
    if (rate > 0) line += fmt::format(", {}/s", base::HumanBytes(static_cast<std::uint64_t>(rate)));
    if (rate > 0 && total > done) {
      line += fmt::format(", {:.0f} s left", static_cast<double>(total - done) / rate);
    }
    fmt::print(stderr, "\r\x1b[K{}", line);
    shown_ = true;
  }
  void Clear() {
    if (shown_) fmt::print(stderr, "\r\x1b[K");
  }

 private:
  std::string phase_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_;
  bool shown_ = false;
};

int Run(int argc, char** argv) {
  CLI::App app("Syncline keeps the weights of running inference engines up to date with a trainer.",
               "syncline");
  app.require_subcommand(1);
  app.set_version_flag("--version", SYNCLINE_VERSION);
  TerminalProgress terminal;
  base::Progress progress =
      isatty(STDERR_FILENO) != 0
          ? base::Progress([&](std::string_view phase, std::uint64_t done, std::uint64_t total) {
              terminal.Report(phase, done, total);
            })
          : base::Progress();
  Session session{.files = base::FileSystem::Posix(), .cancel = cancel_token, .progress = progress};
  AddPublish(app, session);
  AddPull(app, session);
  AddVerify(app, session);
  AddUndo(app, session);
  AddLog(app, session);
  AddKeygen(app, session);
  AddShow(app, session);
  AddDiff(app, session);
  AddFold(app, session);
  AddGc(app, session);
  AddServe(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fmt::print(
        stderr, "syncline: {}\nTry: syncline {}--help\n", error.what(),
        app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name() + " ");
    return Info(base::Code::kInvalidArgument).exit_code;
  }
  signal(SIGINT, OnSignal);
  signal(SIGTERM, OnSignal);
  const base::Result<Output> output = session.action();
  terminal.Clear();
  if (!output) {
    fmt::print(stderr, "syncline: {}\n", output.error().message);
    return Info(output.error().code).exit_code;
  }
  const std::string text = session.json ? ToText(output->json) + "\n" : output->text;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fmt::print(stderr, "syncline: cannot write to standard output\n");
    return Info(base::Code::kIo).exit_code;
  }
  return 0;
}

}  // namespace

CLI::App& AddCommand(CLI::App& app, Session& session, const std::string& name,
                     const std::string& description, const std::string& example) {
  CLI::App& command = *app.add_subcommand(name, description);
  command.footer("Example:\n  " + example);
  command.add_flag("--json", session.json, "Print one JSON object on standard output");
  command.add_option("--threads", session.threads, "Threads to use (default: all processors)")
      ->check(CLI::Range(1, 1024));
  return command;
}

}  // namespace syncline::cli

int main(int argc, char** argv) {
  try {
    return syncline::cli::Run(argc, argv);
  } catch (const std::exception& error) {  // memory ran out, say
    fmt::print(stderr, "syncline: {}\n", error.what());
    return Info(syncline::base::Code::kInternal).exit_code;
  }
}
