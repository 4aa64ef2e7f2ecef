#include "serve/prompts.h"

#include <utility>

namespace syncline::serve {

base::Error NoTokenizer() {
  return {base::Code::kInvalidArgument,
          "this server has no tokenizer: send token ids (input_ids of /generate, or a prompt of "
          "ids)"};
}

void WithTokens(Front& front, std::vector<std::string> texts, Prompts ids,
                std::function<void(base::Result<Prompts>)> then) {
  const auto post = [&front, then = std::move(then)](base::Result<Prompts> prompts) {
    front.worker().Post(
        [then, prompts = std::move(prompts)]() mutable { then(std::move(prompts)); });
  };
  if (texts.empty()) return post(std::move(ids));
  if (front.tokenizer() == nullptr) return post(std::unexpected(NoTokenizer()));
  front.tokenizer()->Encode(std::move(texts), /*add_special_tokens=*/true, post);
}

}  // namespace syncline::serve
