// Asks an engine what it generates.
#pragma once

#include <chrono>
#include <string>

#include "orders/server.h"

namespace syncline::orders {

// When a reply that has not come will not come.
std::chrono::steady_clock::time_point Deadline();

// Status and the begin of the body.
std::string Shown(const http::Response& response);

// The reply to a prompt that leaves nothing to chance.
base::Result<http::Response> Probe(Server& server);
// Was it computed with these weights? Compares with a new engine that has loaded them.
base::Status CheckProbe(const World& world, std::size_t version, const http::Response& response);

}  // namespace syncline::orders
