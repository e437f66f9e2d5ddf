// SPDX-License-Identifier: Apache-2.0
//
// The least a program can be: what the floor and the fork measurement execute.

int main(void) { return 0; }
