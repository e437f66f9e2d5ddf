// SPDX-License-Identifier: Apache-2.0

package egress

// The tables are plain numbers, so that they are laid out by the compiler and cost nothing at start. The first block that
// has an address decides: single addresses stand above the block they lie in. TestM8BlocksAreSound reads `cidr` and holds
// it to the numbers.
//
// Sources: IANA "IPv4 Special-Purpose Address Registry" and "IPv6 Special-Purpose Address Registry" (RFC 6890, RFC 8190),
// "IPv4 Multicast Address Space", and for each metadata service the documentation of the cloud that runs it.

type block4 struct {
	base   uint32
	bits   uint8
	class  Class
	cidr   string
	source string
}

type block6 struct {
	hi, lo uint64
	bits   uint8
	class  Class
	inner  where
	cidr   string
	source string
}

var blocks4 = [...]block4{
	{0xa9fea9fe, 32, Metadata, "169.254.169.254/32", "AWS, Google Cloud, Azure, OpenStack, Oracle, DigitalOcean, Hetzner and others"},
	{0xa9feaa02, 32, Metadata, "169.254.170.2/32", "AWS ECS task credentials"},
	{0xa9feaa17, 32, Metadata, "169.254.170.23/32", "AWS EKS Pod Identity"},
	{0xa9fe0017, 32, Metadata, "169.254.0.23/32", "Tencent Cloud"},
	{0xa9fe2a2a, 32, Metadata, "169.254.42.42/32", "Scaleway"},
	{0x646464c8, 32, Metadata, "100.100.100.200/32", "Alibaba Cloud; lies in the CGNAT block"},
	{0xc00000c0, 32, Metadata, "192.0.0.192/32", "Oracle Cloud classic; lies in the protocol block"},
	{0xa83f8110, 32, Metadata, "168.63.129.16/32", "Azure wire server; lies in public space"},

	{0x00000000, 32, Unspecified, "0.0.0.0/32", "RFC 1122, 3.2.1.3"},
	{0xffffffff, 32, Broadcast, "255.255.255.255/32", "RFC 8190, RFC 919, 7"},

	{0x00000000, 8, ThisNetwork, "0.0.0.0/8", "RFC 791, 3.2"},
	{0x0a000000, 8, Private, "10.0.0.0/8", "RFC 1918"},
	{0x64400000, 10, CGNAT, "100.64.0.0/10", "RFC 6598"},
	{0x7f000000, 8, Loopback, "127.0.0.0/8", "RFC 1122, 3.2.1.3"},
	{0xa9fe0000, 16, LinkLocal, "169.254.0.0/16", "RFC 3927"},
	{0xac100000, 12, Private, "172.16.0.0/12", "RFC 1918"},
	{0xc0000000, 24, Reserved, "192.0.0.0/24", "RFC 6890, 2.1: protocols; its two anycast addresses serve no application"},
	{0xc0000200, 24, Documentation, "192.0.2.0/24", "RFC 5737"},
	{0xc01fc400, 24, Reserved, "192.31.196.0/24", "RFC 7535: AS112, answers nobody but DNS"},
	{0xc034c100, 24, Reserved, "192.52.193.0/24", "RFC 7450: AMT, multicast tunnels"},
	{0xc0586300, 24, Reserved, "192.88.99.0/24", "RFC 7526: 6to4 relays, deprecated"},
	{0xc0a80000, 16, Private, "192.168.0.0/16", "RFC 1918"},
	{0xc0af3000, 24, Reserved, "192.175.48.0/24", "RFC 7534: AS112"},
	{0xc6120000, 15, Benchmarking, "198.18.0.0/15", "RFC 2544"},
	{0xc6336400, 24, Documentation, "198.51.100.0/24", "RFC 5737"},
	{0xcb007100, 24, Documentation, "203.0.113.0/24", "RFC 5737"},
	{0xe0000000, 4, Multicast, "224.0.0.0/4", "RFC 5771"},
	{0xf0000000, 4, Reserved, "240.0.0.0/4", "RFC 1112, 4"},
}

var blocks6 = [...]block6{
	{0xfd000ec200000000, 0x254, 128, Metadata, nowhere, "fd00:ec2::254/128", "AWS"},
	{0xfd000ec200000000, 0x23, 128, Metadata, nowhere, "fd00:ec2::23/128", "AWS EKS Pod Identity"},
	{0xfd2000ce00000000, 0x254, 128, Metadata, nowhere, "fd20:ce::254/128", "Google Cloud"},
	{0xfd00004200000000, 0x42, 128, Metadata, nowhere, "fd00:42::42/128", "Scaleway"},
	{0xfd0000c100000000, 0xa9fea9fe, 128, Metadata, nowhere, "fd00:c1::a9fe:a9fe/128", "Oracle Cloud"},
	{0xfe80000000000000, 0xa9fea9fe, 128, Metadata, nowhere, "fe80::a9fe:a9fe/128", "OpenStack"},

	{0, 0, 128, Unspecified, nowhere, "::/128", "RFC 4291, 2.5.2"},
	{0, 1, 128, Loopback, nowhere, "::1/128", "RFC 4291, 2.5.3"},
	{0, 0x0000ffff00000000, 96, Mapped, atEnd, "::ffff:0:0/96", "RFC 4291, 2.5.5.2"},
	{0, 0xffff000000000000, 96, Compatible, atEnd, "::ffff:0:0:0/96", "RFC 2765, 2.1: IPv4-translated, obsolete"},
	{0, 0, 96, Compatible, atEnd, "::/96", "RFC 4291, 2.5.5.1: deprecated"},
	{0x0064ff9b00000000, 0, 96, Public, atEnd, "64:ff9b::/96", "RFC 6052, 2.1: global if what is inside is"},
	{0x0064ff9b00010000, 0, 48, NAT64, after48, "64:ff9b:1::/48", "RFC 8215; the place of the IPv4 address by RFC 6052, 2.2"},
	{0x0100000000000000, 0, 64, Reserved, nowhere, "100::/64", "RFC 6666: discard"},
	{0x0100000000000001, 0, 64, Reserved, nowhere, "100:0:0:1::/64", "RFC 9780: dummy"},
	{0x2001000000000000, 0, 32, Teredo, obscured, "2001::/32", "RFC 4380"},
	{0x2001000200000000, 0, 48, Benchmarking, nowhere, "2001:2::/48", "RFC 5180"},
	{0x2001000000000000, 0, 23, Reserved, nowhere, "2001::/23", "RFC 2928: protocols, ORCHID (RFC 7343), AS112, drones; no servers"},
	{0x20010db800000000, 0, 32, Documentation, nowhere, "2001:db8::/32", "RFC 3849"},
	{0x2002000000000000, 0, 16, SixToFour, after16, "2002::/16", "RFC 3056; RFC 7526 deprecates its relays"},
	{0x2620004f80000000, 0, 48, Reserved, nowhere, "2620:4f:8000::/48", "RFC 7534: AS112"},
	{0x3fff000000000000, 0, 20, Documentation, nowhere, "3fff::/20", "RFC 9637"},
	{0x5f00000000000000, 0, 16, Reserved, nowhere, "5f00::/16", "RFC 9602: segment routing"},
	{0xfc00000000000000, 0, 7, UniqueLocal, nowhere, "fc00::/7", "RFC 4193"},
	{0xfe80000000000000, 0, 10, LinkLocal, nowhere, "fe80::/10", "RFC 4291, 2.5.6"},
	{0xfec0000000000000, 0, 10, SiteLocal, nowhere, "fec0::/10", "RFC 3879"},
	{0xff00000000000000, 0, 8, Multicast, nowhere, "ff00::/8", "RFC 4291, 2.7"},
}
