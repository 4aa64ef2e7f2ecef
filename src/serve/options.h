// The command line of syncline-engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "quant/config.h"
#include "serve/auth.h"

namespace syncline::serve {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// In the order of what they are about.
struct Options {          // NOLINT(clang-analyzer-optin.performance.Padding)
  std::string model;      // checkpoint directory
  std::string tokenizer;  // its directory; empty: the model's
  std::string host = "127.0.0.1";
  std::uint16_t port = 30000;     // 0: any free one
  std::string served_model_name;  // empty: as `model`
  std::string weight_version = "default";
  std::string fp8_scales = "auto";  // or fp32, ue8m0
  std::uint32_t max_running_requests = 256;
  std::uint64_t kv_cache_bytes = 0;    // 0: the engine's choice
  std::uint64_t max_total_tokens = 0;  // of the key-value cache; 0: by kv_cache_bytes
  std::uint32_t chunked_prefill_size = 512;
  std::uint32_t context_length = 0;  // 0: the model's
  std::uint32_t threads = 0;         // 0: one for each processor
  std::string tokenizer_command;     // empty: found
  bool skip_tokenizer = false;
  // Keys (secrets.h turns the first four into the last).
  std::optional<std::string> api_key;  // as on the command line
  std::optional<std::string> admin_api_key;
  std::string api_key_file;
  std::string admin_api_key_file;
  Keys keys;
  bool allow_unauthenticated = false;  // to other machines
  // HTTPS (http/server.h), with the first two; empty: HTTP.
  std::string ssl_certfile;
  std::string ssl_keyfile;
  std::string ssl_keyfile_password;
  // What requests may name (path_rules.h); no root: anything.
  std::vector<std::string> allowed_roots;
  std::vector<std::string> allowed_sources;
  std::uint64_t random_seed = 0;
  bool disable_radix_cache = false;
  bool prefix_cache_across_versions = false;
  std::string log_level = "info";
  double shutdown_timeout = 5;  // seconds
  // Limits of what clients may ask for (docs/http.md).
  std::uint64_t max_body = std::uint64_t{4} << 30;  // bytes of a request
  std::uint64_t max_header = std::uint64_t{64} << 10;
  std::uint32_t max_connections = 16384;
  double header_timeout = 30;             // seconds, also of the longest pause inside a body
  double idle_timeout = 300;              // seconds
  std::uint32_t max_queued_requests = 0;  // that wait for their turn; 0: no limit
  bool exit_with_parent = false;          // also when standard input ends
  bool await_weights = false;             // unready until the first update
  // Updates from tensors (docs/http.md).
  std::string session = "optional";        // or "required", "ignored"
  double session_timeout = 0;              // seconds without a message; 0: none
  double transfer_timeout = 300;           // seconds; of joining groups, and of transfers past HTTP
  std::uint64_t undo_memory = kUnlimited;  // bytes, of each rank
  // Trainers that write straight into the parameters.
  bool p2p = false;
  std::string p2p_host;                          // address of this host; empty: the rank's
  std::uint16_t engine_info_bootstrap_port = 0;  // 0: none
  std::string
      seed_from;  // URL of a running engine that gives the weights; empty: read from `model`
  // Released memory of the weights.
  bool weights_backup = false;
  std::string weights_backup_directory = "/var/tmp";
  // The ranks of the engine (docs/guide/several-hosts.md).
  std::uint32_t tp = 1;  // ranks, over all nodes
  std::uint32_t ep = 1;  // groups of ranks among which experts are divided
  std::uint32_t nodes = 1;
  std::uint32_t node_rank = 0;
  std::string rendezvous;             // "host:port" of rank 0; empty: this host only
  double rendezvous_timeout = 300;    // seconds until all ranks must be there
  std::optional<std::uint32_t> rank;  // of a process that another one, or torchrun, has started
};

// What the command line asked for: options, or a text to print (--help, --version).
struct CommandLine {
  Options options;
  std::optional<std::string> text;
};

// kInvalidArgument says what is wrong and how to get help.
base::Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                           const std::string& version);

std::chrono::milliseconds Milliseconds(double seconds);

quant::Fp8Scales Fp8ScalesOf(const Options& options);

// Empty: there is no backup.
std::string BackupDirectoryOf(const Options& options);

// For /server_info: the options by the names that SGLang's clients know; no keys.
base::Json OptionsJson(const Options& options);

}  // namespace syncline::serve
