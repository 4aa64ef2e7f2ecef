// Ranks as threads.
#include "ranks/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "base/result_matchers.h"
#include "ranks/socket.h"

namespace syncline::ranks {
namespace {

using base::ByteSpan;
using base::Code;
using base::MutableByteSpan;
using base::Status;

constexpr const char* kHost = "127.0.0.1";

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

struct TestMesh {
  explicit TestMesh(std::uint32_t size) {
    std::vector<Address> addresses;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ranks.push_back(*Mesh::Listen(rank, size, kHost, "secret"));
      addresses.push_back(ranks.back()->address());
    }
    Run([&](std::uint32_t rank) { EXPECT_OK(ranks[rank]->Connect(addresses, Soon())); });
  }

  // Calls body(rank) for all ranks at once.
  void Run(const std::function<void(std::uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] { body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Mesh>> ranks;
};

// What rank `from` sends to `to` in a round: of a size that both know.
std::vector<std::byte> Content(std::uint32_t round, std::uint32_t from, std::uint32_t to) {
  std::mt19937 random(round * 1000 + from * 10 + to);
  std::vector<std::byte> bytes(random() % (round % 5 == 0 ? 3'000'000 : 300));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Status Exchange(Mesh& mesh, std::uint32_t rank, std::uint32_t size, std::uint32_t round,
                std::vector<std::vector<std::byte>>& received) {
  std::vector<std::vector<std::byte>> sent;
  received.clear();
  for (std::uint32_t other = 0; other < size; ++other) {
    sent.push_back(Content(round, rank, other));
    received.emplace_back(Content(round, other, rank).size());
  }
  return mesh.Exchange(std::vector<ByteSpan>(sent.begin(), sent.end()),
                       std::vector<MutableByteSpan>(received.begin(), received.end()));
}

// Large messages all ways at once do not wait for each other.
TEST(Mesh, EverybodyGetsWhatIsForHim) {
  for (const std::uint32_t size : {1U, 2U, 5U}) {
    TestMesh mesh(size);
    mesh.Run([&](std::uint32_t rank) {
      std::vector<std::vector<std::byte>> received;
      for (std::uint32_t round = 0; round < 20; ++round) {
        ASSERT_OK(Exchange(*mesh.ranks[rank], rank, size, round, received));
        for (std::uint32_t other = 0; other < size; ++other) {
          if (other == rank) continue;
          ASSERT_EQ(received[other], Content(round, other, rank));
        }
      }
    });
  }
}

// More than the network holds, one way only.
TEST(Mesh, WhoHasReceivedAllGoesOnSending) {
  TestMesh mesh(2);
  const std::vector<std::byte> much(64 << 20, std::byte{7});
  std::vector<std::byte> received(much.size());
  mesh.Run([&](std::uint32_t rank) {
    std::vector<ByteSpan> send(2);
    std::vector<MutableByteSpan> receive(2);
    if (rank == 0) {
      send[1] = much;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 0 has to wait
      receive[0] = received;
    }
    EXPECT_OK(mesh.ranks[rank]->Exchange(send, receive));
  });
  EXPECT_EQ(received, much);
}

TEST(Mesh, ARankThatIsGoneEndsTheWait) {
  TestMesh mesh(3);
  mesh.Run([&](std::uint32_t rank) {
    if (rank == 1) return mesh.ranks[1].reset();
    std::vector<std::vector<std::byte>> received;
    EXPECT_ERROR(Exchange(*mesh.ranks[rank], rank, 3, 1, received), Code::kUnavailable,
                 "rank 1: connection closed");
  });
}

TEST(Mesh, AbortEndsTheWaitWithItsReason) {
  TestMesh mesh(2);
  std::thread aborter([&] { mesh.ranks[0]->Abort({Code::kUnavailable, "rank 1 is silent"}); });
  std::vector<std::vector<std::byte>> received;
  EXPECT_ERROR(Exchange(*mesh.ranks[0], 0, 2, 1, received), Code::kUnavailable, "is silent");
  aborter.join();
  mesh.ranks[0]->Abort({Code::kInternal, "later"});
  EXPECT_ERROR(Exchange(*mesh.ranks[0], 0, 2, 1, received), Code::kUnavailable, "is silent");
}

TEST(Mesh, RanksThatAreOutOfStepFindOut) {
  TestMesh mesh(2);
  mesh.Run([&](std::uint32_t rank) {
    // Rank 1 expects another round's size.
    std::vector<std::vector<std::byte>> received;
    const Status done = Exchange(*mesh.ranks[rank], rank, 2, 1 + rank, received);
    if (rank == 1) {
      EXPECT_ERROR(done, Code::kInternal, "rank 0 is out of step");
    }
    mesh.ranks[rank]->Abort({Code::kInternal, "over"});
  });
}

// Strangers at the port: without the token, with a rank that is not awaited, or silent.
TEST(Mesh, StrangersAreDropped) {
  auto first = *Mesh::Listen(0, 2, kHost, "secret");
  auto second = *Mesh::Listen(1, 2, kHost, "secret");
  auto guesser = *Mesh::Listen(1, 2, kHost, "guess");
  auto other = *Mesh::Listen(7, 8, kHost, "secret");
  const std::vector<Address> addresses = {first->address(), second->address()};
  std::thread accepting([&] { EXPECT_OK(first->Connect(addresses, Soon())); });
  ASSERT_OK_AND_ASSIGN(const Descriptor gone, ranks::Connect(addresses[0], Soon(), nullptr));
  const std::string garbage = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_OK(WriteAll(gone, base::AsBytes(garbage), Soon(), nullptr));
  EXPECT_ERROR(guesser->Connect(addresses, Soon()), Code::kUnavailable, "rank 0 at 127.0.0.1");
  std::vector<Address> many(8, addresses[0]);
  EXPECT_ERROR(other->Connect(many, Soon()), Code::kUnavailable, "rank 0 at");
  EXPECT_OK(second->Connect(addresses, Soon()));
  accepting.join();
  std::thread sending([&] {
    std::vector<std::vector<std::byte>> received;
    EXPECT_OK(Exchange(*second, 1, 2, 1, received));
  });
  std::vector<std::vector<std::byte>> received;
  EXPECT_OK(Exchange(*first, 0, 2, 1, received));
  sending.join();
  EXPECT_EQ(received[1], Content(1, 1, 0));
}

TEST(Mesh, WhoDoesNotComeIsNamed) {
  auto first = *Mesh::Listen(0, 3, kHost, "");
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  const std::vector<Address> addresses(3, first->address());
  EXPECT_ERROR(first->Connect(addresses, soon), Code::kTimeout, "rank 1 has not connected");
}

}  // namespace
}  // namespace syncline::ranks
