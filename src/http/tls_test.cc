// What only TLS has; all else is tested by the other tests, which run over it too (test_client.h).
#include "http/tls.h"

#include <gmock/gmock.h>
#include <openssl/ssl.h>

#include "base/result_matchers.h"
#include "http/test_client.h"
#include "http/test_identity.h"

namespace syncline::http {
namespace {

using base::Code;
using std::chrono::hours;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using Transport = TestClient::Transport;

ServerOptions Secured(ServerOptions options = {}) {
  options.tls = TestIdentity::Shared().server();
  return options;
}

TestClient Connect(const Server& server, Transport transport = Transport::kTls) {
  return TestClient(server.port(), "127.0.0.1", transport);
}

void ExpectEcho(TestClient& client) {
  ASSERT_TRUE(client.Send(Get("/here")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "GET /here ");
}

TEST(Tls, AClientThatTrustsAnotherAuthorityRefuses) {
  const TestIdentity other;
  const auto server = MustStart(EchoHandler(), {.tls = other.server()});
  TestClient client = Connect(*server);
  EXPECT_FALSE(client.Send(Get("/here")) && client.ReadReply());
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(Tls, PlainHttpIsClosedWithoutAnAnswer) {
  const auto server = MustStart(EchoHandler(), Secured());
  TestClient client = Connect(*server, Transport::kPlain);
  ASSERT_TRUE(client.Send(Get("/here")));
  EXPECT_FALSE(client.ReadReply());
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
  TestClient good = Connect(*server);
  ExpectEcho(good);
}

// The first bytes of a handshake; header_timeout is short, idle_timeout is not.
TEST(Tls, AHandshakeThatNeverEndsIsCutOff) {
  const auto server = MustStart(
      EchoHandler(), Secured({.header_timeout = milliseconds(50), .idle_timeout = hours(1)}));
  for (const std::string& begun :
       {std::string(), std::string("\x16"),
        std::string("\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03", 11)}) {
    TestClient client = Connect(*server, Transport::kPlain);
    ASSERT_TRUE(client.Send(begun));
    const TestClient::End end = client.SkipToEnd();
    EXPECT_TRUE(end == TestClient::End::kClosed || end == TestClient::End::kReset);
  }
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(Tls, TheTimeOfTheHandshakeEndsWithIt) {
  const auto server = MustStart(
      EchoHandler(), Secured({.header_timeout = milliseconds(50), .idle_timeout = hours(1)}));
  TestClient client = Connect(*server);
  EXPECT_FALSE(client.HasData());  // begins the handshake
  ExpectEcho(client);
  for (int i = 0; i < 3; ++i) {  // each takes the time that the first one had
    TestClient silent = Connect(*server, Transport::kPlain);
    EXPECT_NE(silent.ReadEnd(), TestClient::End::kNothing);
  }
  ExpectEcho(client);
  const auto hasty = MustStart(
      EchoHandler(), Secured({.header_timeout = hours(1), .idle_timeout = milliseconds(50)}));
  TestClient idle = Connect(*hasty);
  EXPECT_EQ(idle.ReadEnd(), TestClient::End::kClosed);  // by its idle time
}

// "": none was agreed upon.
std::string Agree(const Server& server, int newest, const std::string& protocols,
                  std::string* agreed) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  SSL_CTX_set_security_level(context.get(), 0);  // the oldest versions too
  SSL_CTX_set_max_proto_version(context.get(), newest);
  SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned>(protocols.size()));
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  const TestClient client = Connect(server, Transport::kPlain);
  SSL_set_fd(ssl.get(), client.socket());
  if (SSL_connect(ssl.get()) != 1) return "";
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl.get(), &chosen, &size);
  if (agreed != nullptr) agreed->assign(reinterpret_cast<const char*>(chosen), size);
  return SSL_get_version(ssl.get());
}

TEST(Tls, OldVersionsAreRefused) {
  const auto server = MustStart(EchoHandler(), Secured());
  EXPECT_EQ(Agree(*server, TLS1_1_VERSION, "", nullptr), "");
  EXPECT_EQ(Agree(*server, TLS1_2_VERSION, "", nullptr), "TLSv1.2");
  EXPECT_EQ(Agree(*server, TLS1_3_VERSION, "", nullptr), "TLSv1.3");
}

TEST(Tls, ClientsThatOfferNewerProtocolsGetHttp11) {
  const auto server = MustStart(EchoHandler(), Secured());
  std::string agreed;
  Agree(*server, TLS1_3_VERSION, "\x02h2\x08http/1.1", &agreed);
  EXPECT_EQ(agreed, "http/1.1");
}

TEST(Tls, BodiesOfEverySizeAroundARecord) {
  const auto server = MustStart(EchoHandler(), Secured());
  TestClient client = Connect(*server);
  for (const std::size_t size : {1U, 16383U, 16384U, 16385U, 32768U, 65535U, 65536U, 65537U,
                                 (1U << 20) - 1, 1U << 20, (1U << 20) + 1, 9U << 20}) {
    std::string body(size, 'a');
    for (std::size_t i = 0; i < size; i += 7) body[i] = static_cast<char>('a' + i % 26);
    ASSERT_TRUE(client.Send(Post("/", body)));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply) << size;
    EXPECT_TRUE(reply->body == "POST / " + body) << size;
  }
}

TEST(Tls, FilesThatDoNotDo) {
  const TestIdentity other;
  const TestIdentity locked("open sesame");
  TlsOptions options = TestIdentity::Shared().server();
  EXPECT_OK(TlsContext::Make(options));
  EXPECT_OK(TlsContext::Make(locked.server()));
  const auto refuse = [](const TlsOptions& bad, const std::string& part) {
    const auto made = TlsContext::Make(bad);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Code::kInvalidArgument);
    EXPECT_THAT(made.error().message, HasSubstr(part));
    EXPECT_THAT(made.error().message, Not(HasSubstr("sesame")));
  };
  options.key_file = other.key_file();
  refuse(options, other.key_file());
  options.key_file = "/nowhere.key";
  refuse(options, "/nowhere.key");
  options = TestIdentity::Shared().server();
  options.certificate_file = options.key_file;
  refuse(options, options.key_file);
  options = locked.server();
  options.key_password = "";
  refuse(options, locked.key_file());
  options.key_password = "close sesame";
  refuse(options, locked.key_file());
  EXPECT_ERROR(Server::Start({.tls = options}, EchoHandler()), Code::kInvalidArgument,
               locked.key_file());
}

}  // namespace
}  // namespace syncline::http
