// SPDX-License-Identifier: Apache-2.0
process.send({ pid: process.pid > 1 });
process.exitCode = 3;
