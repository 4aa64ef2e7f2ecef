// The library reads and writes through a BIO that is the socket below, so it holds no more than the
// records in work.
//
// 1. Read takes records until the place is full, or the socket below gives no more. In the first
//    case more may wait inside the library, of which the kernel knows nothing: so WaitReadable then
//    calls back without asking the kernel (more_).
// 2. Write gathers small pieces into one record, writes large ones from their place, and stops when
//    the socket below is full. The record that is in work then stays in the library, and the next
//    call brings the same bytes again (and perhaps more behind them), as the library wants it.
// 3. A handshake may have to write in order to read, and the other way round: the waits are then
//    turned.
//
// Invariant: once failed_ or ended_ is set nothing more is read.
#include "http/tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace syncline::http {
namespace {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

constexpr std::size_t kRecordBytes = 16 << 10;     // the largest that TLS knows
constexpr std::size_t kReadAheadBytes = 64 << 10;  // from the kernel at once
constexpr std::size_t kBytesPerWrite = 256 << 10;  // then other connections have theirs
constexpr std::array<unsigned char, 9> kProtocols = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

// --- The socket below, as the library sees it ---

Socket& SocketOf(BIO* bio) { return *static_cast<Socket*>(BIO_get_data(bio)); }

int ReadBelow(BIO* bio, char* data, std::size_t size, std::size_t* done) {
  BIO_clear_retry_flags(bio);
  if (size == 0) return 0;
  const IoResult result = SocketOf(bio).Read({data, size});
  *done = result.bytes;
  if (result.kind == IoResult::Kind::kBlocked) BIO_set_retry_read(bio);
  return result.kind == IoResult::Kind::kDone ? 1 : 0;
}

int WriteBelow(BIO* bio, const char* data, std::size_t size, std::size_t* done) {
  BIO_clear_retry_flags(bio);
  if (size == 0) return 0;
  const std::string_view piece(data, size);
  const IoResult result = SocketOf(bio).Write({&piece, 1});
  *done = result.bytes;
  if (result.kind == IoResult::Kind::kBlocked) BIO_set_retry_write(bio);
  return result.kind == IoResult::Kind::kDone ? 1 : 0;
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket below");
    if (made == nullptr) throw std::bad_alloc();
    BIO_meth_set_read_ex(made, ReadBelow);
    BIO_meth_set_write_ex(made, WriteBelow);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

// --- Sockets ---

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslPtr = std::unique_ptr<SSL, SslDeleter>;

// Hears of the other direction.
class Turned final : public SocketEvents {
 public:
  explicit Turned(std::shared_ptr<SocketEvents> events) : events_(std::move(events)) {}
  void OnReadable() override { events_->OnWritable(); }
  void OnWritable() override { events_->OnReadable(); }

 private:
  const std::shared_ptr<SocketEvents> events_;
};

class TlsSocket final : public Socket {
 public:
  TlsSocket(SslPtr ssl, std::unique_ptr<Socket> inner, std::shared_ptr<EventLoop> loop)
      : inner_(std::move(inner)), loop_(std::move(loop)), ssl_(std::move(ssl)) {
    BIO* bio = BIO_new(SocketMethod());
    if (bio == nullptr) throw std::bad_alloc();
    BIO_set_data(bio, inner_.get());
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_accept_state(ssl_.get());
  }

  IoResult Read(std::span<char> to) override {
    std::size_t total = 0;
    read_turned_ = false;
    while (total < to.size() && !failed_ && !ended_) {
      std::size_t got = 0;
      ERR_clear_error();
      const int done = SSL_read_ex(ssl_.get(), to.data() + total, to.size() - total, &got);
      if (done != 1) {
        const int error = Judge(done);
        read_turned_ = error == SSL_ERROR_WANT_WRITE;
        break;
      }
      total += got;
    }
    const bool over = failed_ || ended_;
    more_ = over || total == to.size();
    return Outcome(total, over);
  }

  IoResult Write(std::span<const std::string_view> pieces) override {
    std::array<char, kRecordBytes> record;
    std::string_view data = pieces.front();
    if (data.size() < record.size() && pieces.size() > 1) data = Gather(pieces, record);
    data = data.substr(0, kBytesPerWrite);
    std::size_t total = 0;
    write_turned_ = false;
    while (total < data.size() && !failed_) {
      std::size_t put = 0;
      ERR_clear_error();
      const int done = SSL_write_ex(ssl_.get(), data.data() + total, data.size() - total, &put);
      if (done != 1) {
        const int error = Judge(done);
        write_turned_ = error == SSL_ERROR_WANT_READ;
        break;
      }
      total += put;
    }
    return Outcome(total, failed_);
  }

  void WaitReadable(std::shared_ptr<SocketEvents> events) override {
    if (more_) {
      loop_->Post([events = std::move(events)] { events->OnReadable(); });
    } else if (read_turned_) {
      inner_->WaitWritable(std::make_shared<Turned>(std::move(events)));
    } else {
      inner_->WaitReadable(std::move(events));
    }
  }

  void WaitWritable(std::shared_ptr<SocketEvents> events) override {
    if (write_turned_) {
      inner_->WaitReadable(std::make_shared<Turned>(std::move(events)));
    } else {
      inner_->WaitWritable(std::move(events));
    }
  }

  void ShutdownWrite() override {
    SayEnd();
    inner_->ShutdownWrite();
  }

  void Close() override {
    SayEnd();
    inner_->Close();
  }

  // Without a word of TLS, so that what came before does not pass for whole.
  void Reset() override { inner_->Reset(); }

  bool PeerHasClosed() const override { return ended_ || inner_->PeerHasClosed(); }
  bool Establishing() const override { return SSL_is_init_finished(ssl_.get()) == 0; }

 private:
  static std::string_view Gather(std::span<const std::string_view> pieces,
                                 std::array<char, kRecordBytes>& record) {
    std::size_t size = 0;
    for (const std::string_view piece : pieces) {
      const std::size_t part = std::min(piece.size(), record.size() - size);
      std::memcpy(record.data() + size, piece.data(), part);
      size += part;
    }
    return {record.data(), size};
  }

  static IoResult Outcome(std::size_t moved, bool over) {
    if (moved > 0) return {.kind = IoResult::Kind::kDone, .bytes = moved};
    return {.kind = over ? IoResult::Kind::kClosed : IoResult::Kind::kBlocked};
  }

  int Judge(int done) {
    const int error = SSL_get_error(ssl_.get(), done);
    if (error == SSL_ERROR_ZERO_RETURN) {
      ended_ = true;
    } else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      failed_ = true;
    }
    return error;
  }

  // Best effort: the peer may be gone.
  void SayEnd() {
    if (failed_ || std::exchange(said_end_, true) || Establishing()) return;
    ERR_clear_error();
    (void)SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }

  const std::unique_ptr<Socket> inner_;
  const std::shared_ptr<EventLoop> loop_;
  const SslPtr ssl_;  // goes first: it uses inner_
  bool more_ = false;
  bool read_turned_ = false;
  bool write_turned_ = false;
  bool failed_ = false;  // broken: nothing can be said any more
  bool ended_ = false;   // the peer has said that no more comes
  bool said_end_ = false;
};

// --- The context ---

// Of the first error that the library has noted.
std::string Reason() {
  const unsigned long error = ERR_get_error();
  const char* text = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return text == nullptr ? "unknown error" : text;
}

// Never asks at a terminal.
int GivePassword(char* to, int size, int, void* given) {
  const std::string& password = *static_cast<const std::string*>(given);
  if (size < 0 || password.size() > static_cast<std::size_t>(size)) return -1;
  std::ranges::copy(password, to);
  return static_cast<int>(password.size());
}

int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* in, unsigned in_size, void*) {
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_size, kProtocols.data(), kProtocols.size(), in, in_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

struct ContextDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, ContextDeleter>;

class OpenSslContext final : public TlsContext {
 public:
  explicit OpenSslContext(ContextPtr context) : context_(std::move(context)) {}

  std::unique_ptr<Socket> Wrap(std::unique_ptr<Socket> inner,
                               std::shared_ptr<EventLoop> loop) override {
    SslPtr ssl(SSL_new(context_.get()));
    if (ssl == nullptr) throw std::bad_alloc();
    return std::make_unique<TlsSocket>(std::move(ssl), std::move(inner), std::move(loop));
  }

 private:
  const ContextPtr context_;
};

Status ReadFiles(SSL_CTX* context, const TlsOptions& options) {
  std::string password = options.key_password;
  SSL_CTX_set_default_passwd_cb(context, GivePassword);
  SSL_CTX_set_default_passwd_cb_userdata(context, &password);
  const auto fail = [](const std::string& file, std::string_view what) {
    return Fail(Code::kInvalidArgument, fmt::format("{}: expected {}: {}", file, what, Reason()));
  };
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) != 1) {
    return fail(options.certificate_file, "a certificate (PEM)");
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return fail(options.key_file, "the key of " + options.certificate_file + " (PEM)");
  }
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  SSL_CTX_set_default_passwd_cb(context, nullptr);
  return {};
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::Make(const TlsOptions& options) {
  ContextPtr context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return Fail(Code::kInternal, "TLS: " + Reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadAheadBytes);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  SYNCLINE_TRY(ReadFiles(context.get(), options));
  return std::make_unique<OpenSslContext>(std::move(context));
}

}  // namespace syncline::http
