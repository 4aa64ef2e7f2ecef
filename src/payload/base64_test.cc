#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "base/result_matchers.h"
#include "payload/payload.h"

namespace syncline::payload {
namespace {

using base::Code;

std::string Decoded(std::string_view text) {
  const auto bytes = DecodeBase64(text);
  return bytes ? std::string(base::AsText(*bytes)) : "error: " + bytes.error().message;
}

// By the definition: bits in a row, six at a time.
std::string Encoded(const std::vector<std::uint8_t>& bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 6) {
    std::size_t digit = 0;
    for (std::size_t i = bit; i < bit + 6; ++i) {
      const bool set = i / 8 < bytes.size() && (bytes[i / 8] >> (7 - i % 8) & 1) != 0;
      digit = digit * 2 + (set ? 1 : 0);
    }
    text += kAlphabet[digit];
  }
  while (text.size() % 4 != 0) text += '=';
  return text;
}

TEST(Base64, DecodesTheVectorsOfTheStandard) {
  EXPECT_EQ(Decoded(""), "");
  EXPECT_EQ(Decoded("Zg=="), "f");
  EXPECT_EQ(Decoded("Zm8="), "fo");
  EXPECT_EQ(Decoded("Zm9v"), "foo");
  EXPECT_EQ(Decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(Decoded("Zm9vYmE="), "fooba");
  EXPECT_EQ(Decoded("Zm9vYmFy"), "foobar");
  EXPECT_EQ(Decoded("/+8="), "\xff\xef");
}

TEST(Base64, RefusesWhatIsNotOfIt) {
  EXPECT_ERROR(DecodeBase64("Zg="), Code::kInvalidArgument, "3 characters");
  EXPECT_ERROR(DecodeBase64("Zm9*"), Code::kInvalidArgument, "character 3");
  EXPECT_ERROR(DecodeBase64("Zm9v\nYm="), Code::kInvalidArgument, "character 4");
  EXPECT_ERROR(DecodeBase64("Zm-_"), Code::kInvalidArgument, "character 2");
  EXPECT_ERROR(DecodeBase64("Z==="), Code::kInvalidArgument, "character 1");
  EXPECT_ERROR(DecodeBase64("===="), Code::kInvalidArgument, "character 0");
  EXPECT_ERROR(DecodeBase64("Zg==Zg=="), Code::kInvalidArgument, "character 2");
  EXPECT_ERROR(DecodeBase64("Zh=="), Code::kInvalidArgument, "bits after the last byte");
  EXPECT_ERROR(DecodeBase64("Zm9="), Code::kInvalidArgument, "bits after the last byte");
  EXPECT_ERROR(DecodeBase64(std::string_view("Zm9\0", 4)), Code::kInvalidArgument, "character 3");
}

RC_GTEST_PROP(Base64, GivesBackWhatWasEncoded, (const std::vector<std::uint8_t>& bytes)) {
  RC_ASSERT(EncodeBase64(std::as_bytes(std::span(bytes))) == Encoded(bytes));
  const auto decoded = DecodeBase64(Encoded(bytes));
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(base::AsText(*decoded) ==
            std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace
}  // namespace syncline::payload
