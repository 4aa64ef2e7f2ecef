#include "serve/scene.h"

#include <fmt/format.h>

#include <charconv>

#include "base/result_matchers.h"

namespace syncline::serve {

using base::Json;

text::Vocabulary TestVocabulary() {
  std::string entries;
  for (int byte = 33; byte < 100; ++byte) {  // as far as they are plain characters
    if (byte == '"' || byte == '\\') continue;
    entries += fmt::format(R"("{}":{},)", static_cast<char>(byte), byte);
  }
  for (int k = 0; k < 10; ++k) {
    entries += fmt::format(R"("<{}>":{}{})", k, 100 + k, k < 9 ? "," : "");
  }
  const base::TempDir directory;
  EXPECT_OK(
      WriteTextAtomically(base::FileSystem::Posix(), directory / "tokenizer.json",
                          R"({"model":{"type":"BPE","vocab":{)" + entries +
                              R"(},"merges":[]},"added_tokens":[],"decoder":{"type":"Fuse"}})",
                          false));
  auto loaded = text::Vocabulary::Load(base::FileSystem::Posix(), directory.path());
  EXPECT_OK(loaded);
  return loaded ? *std::move(loaded) : text::Vocabulary();
}

void Scene::GetReady(bool tokenizer) {
  front_.SetReady({.engine = &engine_,
                   .weights = &weights_,
                   .tokenizer = tokenizer ? &tokenizer_ : nullptr,
                   .vocabulary = &vocabulary_},
                  {.served_name = "tiny",
                   .tokenizer_path = "/models/launch",
                   .model_type = "llama",
                   .architectures = {"LlamaForCausalLM"},
                   .arguments = Json(Json::Object{{"max_running_requests", std::uint64_t{8}},
                                                  {"weight_version", "default"}}),
                   .software_version = "1.2.3",
                   .device_uuids = {"CPU-0", "CPU-1"}});
}

std::shared_ptr<FakeExchange> Scene::Start(
    std::string method, std::string_view target, std::string body,
    std::vector<std::pair<std::string, std::string>> headers) {
  auto request = std::make_shared<http::Request>();
  request->method = std::move(method);
  const std::size_t mark = target.find('?');
  request->path = target.substr(0, mark);
  while (mark != std::string_view::npos && !target.empty()) {
    const std::size_t begin = target.find_first_of("?&");
    if (begin == std::string_view::npos) break;
    target.remove_prefix(begin + 1);
    const std::string_view pair = target.substr(0, target.find('&'));
    const std::size_t equals = pair.find('=');
    request->query.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  request->headers = std::move(headers);
  request->body = std::move(body);
  auto exchange = std::make_shared<FakeExchange>();
  router_.Handle(request, exchange);
  return exchange;
}

Json MustParse(std::string_view text) {
  auto parsed = base::ParseJson(text);
  EXPECT_TRUE(parsed.has_value()) << text;
  return parsed ? *std::move(parsed) : Json();
}

std::string Scene::UpdateToFive() {
  const std::string file = version_five_ / "model.safetensors";
  const auto exists = base::Exists(base::FileSystem::Posix(), file);
  if (!exists || !*exists) {
    EXPECT_OK(WriteTextAtomically(base::FileSystem::Posix(), file, "five", false));
  }
  const std::string body =
      fmt::format(R"({{"weight_version":"5","model_path":"{}"}})", version_five_.path());
  return At(ParseReply(Post("/update_weights_from_disk", body)), "already_loaded");
}

Json ParseReply(const http::Response& response) { return MustParse(response.body); }

std::string At(const Json& json, std::string_view path) {
  const Json* at = &json;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string_view step = path.substr(0, dot);
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
    if (const Json::Array* array = at->array()) {
      std::size_t index = array->size();
      std::from_chars(step.data(), step.data() + step.size(), index);
      if (index >= array->size()) return "-";
      at = &(*array)[index];
    } else {
      at = at->Find(step);
      if (at == nullptr) return "-";
    }
  }
  return ToText(*at);
}

}  // namespace syncline::serve
