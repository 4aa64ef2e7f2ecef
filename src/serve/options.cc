#include "serve/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace syncline::serve {
namespace {

// A number of bytes, with a unit ("3G", of 1024 megabytes) or without.
void AddBytes(CLI::App& app, const std::string& name, std::uint64_t& bytes,
              const std::string& help) {
  CLI::Option* option = app.add_option(name, bytes, help)->transform(CLI::AsSizeValue(false));
  const auto refuse_sign = [](const std::string& text) {
    return text.starts_with('-') ? "expected a number of bytes, got " + text : std::string();
  };
  option->transform(CLI::Validator(refuse_sign, ""));  // the last one is asked first
}

void AddRepeatable(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                   const std::string& help) {
  app.add_option(name, values, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

void AddModelOptions(CLI::App& app, Options& options) {
  app.add_option("--model,--model-path", options.model, "Checkpoint directory")->required();
  app.add_option("--tokenizer-path", options.tokenizer,
                 "Directory of the tokenizer (default: the checkpoint's)");
  app.add_option("--tokenizer-command", options.tokenizer_command,
                 "Program and arguments of the tokenizer helper (default: found)");
  app.add_flag("--skip-tokenizer-init", options.skip_tokenizer,
               "Take and give token ids only; no tokenizer is needed");
  app.add_option("--served-model-name", options.served_model_name,
                 "Name in /v1/models (default: as --model)");
  app.add_option("--weight-version", options.weight_version,
                 "Label of the weights at the start (default: default)");
  app.add_option("--fp8-scales", options.fp8_scales,
                 "Scales of block-wise fp8: fp32, ue8m0 (packed powers of two), or auto, as the "
                 "checkpoint's scale_fmt says (default: auto)")
      ->check(CLI::IsMember({"auto", "fp32", "ue8m0"}));
}

void AddServerOptions(CLI::App& app, Options& options) {
  app.add_option("--host", options.host, "Address to listen at (default: 127.0.0.1)");
  app.add_option("--port", options.port, "Port; 0 takes any free one (default: 30000)");
  app.add_option("--log-level", options.log_level, "debug, info, warning, error or off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  app.add_option("--shutdown-timeout", options.shutdown_timeout,
                 "Seconds that running requests get after SIGTERM (default: 5)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("--exit-with-parent", options.exit_with_parent,
               "End as on SIGTERM when standard input ends: for a program that starts this one");
}

void AddAccessOptions(CLI::App& app, Options& options) {
  app.add_option("--api-key-file", options.api_key_file,
                 "File with the key that every request must carry (or the variable "
                 "SYNCLINE_API_KEY)");
  app.add_option("--admin-api-key-file", options.admin_api_key_file,
                 "File with the key of the routes that change the engine (or the variable "
                 "SYNCLINE_ADMIN_API_KEY)");
  app.add_option("--api-key", options.api_key,
                 "The key itself; others may see it for a moment, as long as the program starts");
  app.add_option("--admin-api-key", options.admin_api_key, "The same of the other key");
  app.add_flag("--allow-unauthenticated", options.allow_unauthenticated,
               "Let other machines (--host) in without any key");
  app.add_option("--ssl-certfile", options.ssl_certfile,
                 "Certificate (PEM, with those that lead to its authority): HTTPS instead of HTTP");
  app.add_option("--ssl-keyfile", options.ssl_keyfile, "Its private key (PEM)");
  app.add_option("--ssl-keyfile-password", options.ssl_keyfile_password,
                 "Password of that file (or the variable SYNCLINE_SSL_KEYFILE_PASSWORD)");
  AddRepeatable(
      app, "--allowed-root", options.allowed_roots,
      "Directory in which all paths of requests must lie, links followed; may be repeated "
      "(default: any path)");
  AddRepeatable(app, "--allowed-source", options.allowed_sources,
                "With --allowed-root: what the URL of a store may begin with, as "
                "s3://bucket/runs; may be repeated (default: no URL)");
}

void AddLimitOptions(CLI::App& app, Options& options) {
  constexpr double kDay = 86400;
  AddBytes(app, "--max-body", options.max_body,
           "Bytes of the largest request, as 2G or 512M (default: 4G)");
  AddBytes(app, "--max-header", options.max_header,
           "Bytes of the headers of a request (default: 64K)");
  app.add_option("--max-connections", options.max_connections,
                 "Open connections; more are closed at once (default: 16384)")
      ->check(CLI::Range(1U, 1U << 20));
  app.add_option("--header-timeout", options.header_timeout,
                 "Seconds for the headers of a request, for the handshake of TLS, and for the "
                 "longest pause inside a body (default: 30)")
      ->check(CLI::Range(0.1, kDay));
  app.add_option("--idle-timeout", options.idle_timeout,
                 "Seconds that a connection may stay open without a request, or that a client may "
                 "take nothing of its reply (default: 300)")
      ->check(CLI::Range(0.1, 30 * kDay));
  app.add_option("--max-queued-requests", options.max_queued_requests,
                 "Requests for generation that may wait, also for the end of a pause; more are "
                 "answered 429 (default: no limit)");
}

void AddEngineOptions(CLI::App& app, Options& options) {
  app.add_option("--max-running-requests", options.max_running_requests,
                 "Sequences computed in one step (default: 256)")
      ->check(CLI::Range(1, 65536));
  app.add_option("--kv-cache-bytes", options.kv_cache_bytes,
                 "Memory of the key-value cache (default: a quarter of what is free)");
  app.add_option("--max-total-tokens", options.max_total_tokens,
                 "Tokens that the key-value cache holds, instead of bytes")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 40));
  app.add_option("--chunked-prefill-size", options.chunked_prefill_size,
                 "Prompt tokens computed in one step (default: 512)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--context-length", options.context_length,
                 "Longest prompt and output together (default: the model's)");
  app.add_option("--threads", options.threads, "Threads of the model (default: all processors)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--random-seed", options.random_seed,
                 "Seed of requests that bring none (default: 0)");
  CLI::Option* disable =
      app.add_flag("--disable-radix-cache", options.disable_radix_cache,
                   "Compute every prompt whole, also where another request began alike");
  app.add_flag("--prefix-cache-across-versions", options.prefix_cache_across_versions,
               "Reuse what was computed before an update of the weights, until it is flushed")
      ->excludes(disable);
}

void AddUpdateOptions(CLI::App& app, Options& options) {
  app.add_option("--session", options.session,
                 "Whether updates from tensors need /begin_weight_update and /end_weight_update: "
                 "required, optional or ignored (default: optional)")
      ->check(CLI::IsMember({"required", "optional", "ignored"}));
  app.add_option("--session-timeout", options.session_timeout,
                 "Seconds without a message after which a session is undone; 0 waits for ever "
                 "(default: 0)")
      ->check(CLI::Range(0.0, 30.0 * 86400));
  app.add_flag("--checkpoint-engine-wait-weights-before-ready", options.await_weights,
               "Generate nothing, and be unready, until the first update of the weights");
  app.add_option(
         "--transfer-timeout", options.transfer_timeout,
         "Seconds until a group of a trainer's processes must have come together, and that a "
         "transfer past HTTP may take (default: 300)")
      ->check(CLI::Range(0.1, 30.0 * 86400));
  AddBytes(app, "--undo-memory", options.undo_memory,
           "Bytes on each rank in which a session keeps what it has received, as 8G; what goes "
           "beyond is written in place and cannot be undone (default: no limit)");
  app.add_option("--seed-from", options.seed_from,
                 "http://HOST:PORT of a running engine, divided alike, whose live weights this one "
                 "starts with; --model gives configuration and tokenizer only");
  app.add_flag("--p2p,--remote-instance-weight-loader-start-seed-via-transfer-engine", options.p2p,
               "Let trainers write straight into the parameters in sessions, through Mooncake's "
               "transfer engine");
  app.add_option("--p2p-host", options.p2p_host,
                 "Address of this host at which such trainers reach it (default: the rank's)");
  app.add_option("--engine-info-bootstrap-port", options.engine_info_bootstrap_port,
                 "Port of a server of its own that says where they write (default: none)");
  app.add_flag(
      "--enable-weights-cpu-backup", options.weights_backup,
      "Keep the weights in a file while /release_memory_occupation gives their memory back");
  app.add_option("--weights-backup-dir", options.weights_backup_directory,
                 "Directory of that file, on a disk and not in memory (default: /var/tmp)");
}

void AddRankOptions(CLI::App& app, Options& options) {
  constexpr std::uint32_t kMost = 1024;
  app.add_option("--tp,--tp-size,--tensor-parallel-size", options.tp,
                 "Ranks (processes) that share the model, over all nodes (default: 1)")
      ->check(CLI::Range(1U, kMost));
  app.add_option("--ep,--ep-size,--expert-parallel-size", options.ep,
                 "Groups of ranks among which the experts of a mixture are divided (default: 1)")
      ->check(CLI::Range(1U, kMost));
  app.add_option("--nnodes", options.nodes, "Hosts (default: 1)")->check(CLI::Range(1U, kMost));
  app.add_option("--node-rank", options.node_rank, "Number of this host, from 0 (default: 0)");
  app.add_option("--rendezvous,--dist-init-addr", options.rendezvous,
                 "HOST:PORT of node 0 where the ranks of several hosts meet");
  app.add_option("--rendezvous-timeout", options.rendezvous_timeout,
                 "Seconds until all ranks must be there (default: 300)")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--rank", options.rank, "Of a process that is started by another rank")
      ->group("");  // not for people
}

std::unexpected<base::Error> Refuse(const std::string& what) {
  return base::Fail(base::Code::kInvalidArgument, what + "\nTry: syncline serve --help");
}

base::Status CheckAccess(const Options& options) {
  if (options.ssl_certfile.empty() != options.ssl_keyfile.empty()) {
    return Refuse("--ssl-certfile and --ssl-keyfile: expected both");
  }
  if (!options.allowed_sources.empty() && options.allowed_roots.empty()) {
    return Refuse("--allowed-source: expected --allowed-root too, without which all is allowed");
  }
  for (const std::string& source : options.allowed_sources) {
    if (source.find("://") == std::string::npos) {
      return Refuse("--allowed-source " + source + ": expected the beginning of a URL");
    }
  }
  return {};
}

base::Status CheckP2p(const Options& options) {
  if (!options.p2p || options.session != "ignored") return {};
  return Refuse("--p2p: trainers write in sessions, which --session ignored leaves out");
}

base::Status CheckRanks(const Options& options) {
  if (options.tp % options.ep != 0) {
    return Refuse(fmt::format("--tp {} is no multiple of --ep {}", options.tp, options.ep));
  }
  if (options.tp % options.nodes != 0) {
    return Refuse(fmt::format("--tp {} is no multiple of --nnodes {}", options.tp, options.nodes));
  }
  if (options.node_rank >= options.nodes) {
    return Refuse(fmt::format("--node-rank {}: there are {} nodes, counted from 0",
                              options.node_rank, options.nodes));
  }
  if (options.rank && *options.rank >= options.tp) {
    return Refuse(fmt::format("rank {}: there are {} ranks (--tp), counted from 0", *options.rank,
                              options.tp));
  }
  if (options.nodes > 1 && options.rendezvous.empty()) {
    return Refuse("--nnodes: several hosts need --rendezvous HOST:PORT");
  }
  return {};
}

}  // namespace

base::Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                           const std::string& version) {
  CommandLine line;
  CLI::App app("Serves a model over HTTP and takes weight updates while it runs.",
               "syncline serve");
  // A rank starts others with its own options and some more.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer("Example:\n  syncline serve --model /models/smollm2 --port 30000");
  app.set_version_flag("--version", version);
  AddModelOptions(app, line.options);
  AddServerOptions(app, line.options);
  AddAccessOptions(app, line.options);
  AddLimitOptions(app, line.options);
  AddEngineOptions(app, line.options);
  AddUpdateOptions(app, line.options);
  AddRankOptions(app, line.options);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
  } catch (const CLI::CallForVersion&) {
    line.text = version + "\n";
  } catch (const CLI::ParseError& error) {
    return base::Fail(base::Code::kInvalidArgument,
                      fmt::format("{}\nTry: syncline serve --help", error.what()));
  }
  if (!line.text) SYNCLINE_TRY(CheckRanks(line.options));
  if (!line.text) SYNCLINE_TRY(CheckAccess(line.options));
  if (!line.text) SYNCLINE_TRY(CheckP2p(line.options));
  if (line.options.host == "localhost") line.options.host = "127.0.0.1";
  if (line.options.served_model_name.empty()) line.options.served_model_name = line.options.model;
  if (line.options.tokenizer.empty()) line.options.tokenizer = line.options.model;
  return line;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

quant::Fp8Scales Fp8ScalesOf(const Options& options) {
  if (options.fp8_scales == "fp32") return quant::Fp8Scales::kFp32;
  if (options.fp8_scales == "ue8m0") return quant::Fp8Scales::kUe8m0;
  return quant::Fp8Scales::kAuto;
}

std::string BackupDirectoryOf(const Options& options) {
  return options.weights_backup ? options.weights_backup_directory : "";
}

base::Json OptionsJson(const Options& options) {
  using base::Json;
  const auto list = [](const std::vector<std::string>& texts) {
    return Json(Json::Array(texts.begin(), texts.end()));
  };
  return base::Json(base::Json::Object{
      {"model_path", options.model},
      {"tokenizer_path", options.tokenizer},
      {"served_model_name", options.served_model_name},
      {"weight_version", options.weight_version},
      {"fp8_scales", options.fp8_scales},
      {"host", options.host},
      {"port", std::uint64_t{options.port}},
      {"skip_tokenizer_init", options.skip_tokenizer},
      {"max_running_requests", std::uint64_t{options.max_running_requests}},
      {"kv_cache_bytes", options.kv_cache_bytes},
      {"max_total_tokens", options.max_total_tokens},
      {"chunked_prefill_size", std::uint64_t{options.chunked_prefill_size}},
      {"context_length", std::uint64_t{options.context_length}},
      {"threads", std::uint64_t{options.threads}},
      {"random_seed", options.random_seed},
      {"disable_radix_cache", options.disable_radix_cache},
      {"prefix_cache_across_versions", options.prefix_cache_across_versions},
      {"max_body", options.max_body},
      {"max_header", options.max_header},
      {"ssl_certfile", options.ssl_certfile.empty() ? Json() : Json(options.ssl_certfile)},
      {"max_connections", std::uint64_t{options.max_connections}},
      {"header_timeout", options.header_timeout},
      {"idle_timeout", options.idle_timeout},
      {"max_queued_requests", options.max_queued_requests == 0
                                  ? Json()
                                  : Json(std::uint64_t{options.max_queued_requests})},
      {"checkpoint_engine_wait_weights_before_ready", options.await_weights},
      {"allowed_roots", list(options.allowed_roots)},
      {"allowed_sources", list(options.allowed_sources)},
      {"session", options.session},
      {"session_timeout", options.session_timeout},
      {"transfer_timeout", options.transfer_timeout},
      {"undo_memory", options.undo_memory == kUnlimited ? Json() : Json(options.undo_memory)},
      {"p2p", options.p2p},
      {"engine_info_bootstrap_port", std::uint64_t{options.engine_info_bootstrap_port}},
      {"enable_weights_cpu_backup", options.weights_backup},
      {"weights_backup_dir", options.weights_backup_directory},
      {"tp_size", std::uint64_t{options.tp}},
      {"ep_size", std::uint64_t{options.ep}},
      {"pp_size", std::uint64_t{1}},
      {"dp_size", std::uint64_t{1}},
      {"nnodes", std::uint64_t{options.nodes}},
      {"node_rank", std::uint64_t{options.node_rank}},
      {"dist_init_addr", options.rendezvous.empty() ? Json() : Json(options.rendezvous)},
      {"log_level", options.log_level}});
}

}  // namespace syncline::serve
