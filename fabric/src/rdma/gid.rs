//! Which address of a port a queue pair speaks from: a choice among the entries of its GID table.
//!
//! On Ethernet the GID is an IP address in one of several encapsulations; the table has holes, an entry of each
//! version for each address, and link-local ones first. InfiniBand routes by LID, and by GID only where the
//! subnet says so.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// What a GID is sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet frames without an IP header: not routable, and both ends must use it. Not used here.
    RoceV1,
    /// UDP on port 4791.
    RoceV2,
    /// A number that this version does not know.
    Other(u32),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(kind) => write!(f, "kind {kind}"),
        }
    }
}

/// A valid entry of a device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Port, from 1 on.
    pub port: u32,
    /// Index in the port's table.
    pub index: u32,
    /// Encapsulation.
    pub kind: GidKind,
    /// The GID, in network order.
    pub gid: [u8; 16],
}

impl GidEntry {
    /// The GID as an address: IPv4 where it is a mapped one.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (port {}, index {})", self.kind, self.address(), self.port, self.index)
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// LIDs, a subnet manager.
    InfiniBand,
    /// RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// How well a GID fits the address that is spoken from; the best comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It can be reached on the same link only.
    LinkLocal,
    /// It is an address of this host, where any will do.
    V6,
    V4,
    /// InfiniBand, which reaches its peers whatever the address: unless a RoCE port has that.
    InfiniBand,
    /// It is the very address.
    Exact,
}

/// Whether any address of this host is as good as another: the peer is on this host, or none was named.
fn is_any(local: IpAddr) -> bool {
    local.is_loopback() || local.is_unspecified()
}

fn fit(entry: &GidEntry, layer: LinkLayer, local: IpAddr) -> Option<Fit> {
    if layer == LinkLayer::InfiniBand {
        return (entry.index == 0).then_some(Fit::InfiniBand);
    }
    if entry.kind != GidKind::RoceV2 || entry.gid == [0; 16] {
        return None;
    }
    match entry.address() {
        address if address == local => Some(Fit::Exact),
        _ if !is_any(local) => None,
        IpAddr::V4(_) => Some(Fit::V4),
        IpAddr::V6(address) if address.is_unicast_link_local() => Some(Fit::LinkLocal),
        IpAddr::V6(_) => Some(Fit::V6),
    }
}

/// The entry of `port` to speak from when the control connection's local address is `local`, and how well it fits.
///
/// On Ethernet the RoCE v2 entry of that very address; where the address is loopback or unspecified, of any, IPv4
/// first. On InfiniBand entry 0.
pub(super) fn choose(table: &[GidEntry], port: u32, layer: LinkLayer, local: IpAddr) -> Option<(GidEntry, Fit)> {
    let local = local.to_canonical();
    let mut best: Option<(GidEntry, Fit)> = None;
    for entry in table.iter().filter(|entry| entry.port == port) {
        if let Some(fit) = fit(entry, layer, local)
            // Of equals the first.
            && best.is_none_or(|(_, before)| fit > before)
        {
            best = Some((*entry, fit));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        match text.parse::<IpAddr>().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }

    fn table(entries: &[(u32, u32, GidKind, &str)]) -> Vec<GidEntry> {
        entries.iter().map(|&(port, index, kind, text)| GidEntry { port, index, kind, gid: gid(text) }).collect()
    }

    fn chosen(table: &[GidEntry], port: u32, local: &str) -> Option<u32> {
        choose(table, port, LinkLayer::Ethernet, local.parse().unwrap()).map(|(entry, _)| entry.index)
    }

    /// Soft-RoCE over a netdev with one address.
    fn soft() -> Vec<GidEntry> {
        table(&[(1, 0, GidKind::RoceV2, "fe80::5054:ff:fe00:1"), (1, 1, GidKind::RoceV2, "10.77.0.1")])
    }

    /// A ConnectX-5 port: each address in both versions, a VLAN's addresses further on, holes between.
    fn two_ports() -> Vec<GidEntry> {
        table(&[
            (1, 0, GidKind::RoceV1, "fe80::ee0d:9aff:fe45:1"),
            (1, 1, GidKind::RoceV2, "fe80::ee0d:9aff:fe45:1"),
            (1, 2, GidKind::RoceV1, "192.168.10.7"),
            (1, 3, GidKind::RoceV2, "192.168.10.7"),
            (1, 6, GidKind::RoceV1, "2001:db8::7"),
            (1, 7, GidKind::RoceV2, "2001:db8::7"),
            (1, 9, GidKind::RoceV2, "192.168.20.7"),
            (2, 0, GidKind::RoceV1, "fe80::ee0d:9aff:fe45:2"),
            (2, 1, GidKind::RoceV2, "fe80::ee0d:9aff:fe45:2"),
            (2, 5, GidKind::RoceV2, "192.168.30.7"),
        ])
    }

    #[test]
    fn the_entry_of_the_address_in_version_2() {
        assert_eq!(chosen(&soft(), 1, "10.77.0.1"), Some(1));
        assert_eq!(chosen(&two_ports(), 1, "192.168.10.7"), Some(3));
        assert_eq!(chosen(&two_ports(), 1, "192.168.20.7"), Some(9));
        assert_eq!(chosen(&two_ports(), 1, "2001:db8::7"), Some(7));
        assert_eq!(chosen(&two_ports(), 1, "::ffff:192.168.10.7"), Some(3));
        assert_eq!(chosen(&two_ports(), 1, "fe80::ee0d:9aff:fe45:1"), Some(1));
    }

    #[test]
    fn the_other_port_and_other_hosts_are_no_choice() {
        assert_eq!(chosen(&two_ports(), 2, "192.168.10.7"), None);
        assert_eq!(chosen(&two_ports(), 2, "192.168.30.7"), Some(5));
        assert_eq!(chosen(&two_ports(), 1, "192.168.10.8"), None);
        assert_eq!(chosen(&soft(), 2, "10.77.0.1"), None);
    }

    #[test]
    fn on_the_same_host_any_address_that_can_be_routed() {
        assert_eq!(chosen(&soft(), 1, "127.0.0.1"), Some(1));
        assert_eq!(chosen(&soft(), 1, "0.0.0.0"), Some(1));
        assert_eq!(chosen(&two_ports(), 1, "::1"), Some(3));
        let without_v4 = table(&[(1, 0, GidKind::RoceV2, "fe80::1"), (1, 4, GidKind::RoceV2, "2001:db8::7")]);
        assert_eq!(chosen(&without_v4, 1, "127.0.0.1"), Some(4));
        let link_local = table(&[(1, 0, GidKind::RoceV1, "fe80::1"), (1, 1, GidKind::RoceV2, "fe80::1")]);
        assert_eq!(chosen(&link_local, 1, "127.0.0.1"), Some(1));
    }

    #[test]
    fn version_1_alone_and_empty_tables_are_no_choice() {
        let old = table(&[(1, 0, GidKind::RoceV1, "fe80::1"), (1, 1, GidKind::RoceV1, "10.0.0.1")]);
        assert_eq!(chosen(&old, 1, "10.0.0.1"), None);
        assert_eq!(chosen(&old, 1, "127.0.0.1"), None);
        assert_eq!(chosen(&[], 1, "127.0.0.1"), None);
        let zero = table(&[(1, 0, GidKind::RoceV2, "::")]);
        assert_eq!(chosen(&zero, 1, "0.0.0.0"), None);
    }

    #[test]
    fn infiniband_takes_entry_0() {
        let table =
            table(&[(1, 0, GidKind::InfiniBand, "fe80::ec0d:9a03:78:1"), (1, 1, GidKind::InfiniBand, "fec0::1")]);
        let (entry, fit) = choose(&table, 1, LinkLayer::InfiniBand, "10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!((entry.index, fit), (0, Fit::InfiniBand));
        assert!(choose(&table[1..], 1, LinkLayer::InfiniBand, "10.0.0.1".parse().unwrap()).is_none());
    }

    /// Two addresses on one interface, IPv4 and IPv6, the second one added later.
    #[test]
    fn of_several_addresses_on_an_interface_the_one_that_is_spoken_from() {
        let table = table(&[
            (1, 0, GidKind::RoceV1, "fe80::1"),
            (1, 1, GidKind::RoceV2, "fe80::1"),
            (1, 2, GidKind::RoceV1, "10.0.0.1"),
            (1, 3, GidKind::RoceV2, "10.0.0.1"),
            (1, 4, GidKind::RoceV1, "10.0.0.2"),
            (1, 5, GidKind::RoceV2, "10.0.0.2"),
            (1, 12, GidKind::RoceV2, "2001:db8::2"),
        ]);
        for (local, index) in [("10.0.0.1", 3), ("10.0.0.2", 5), ("2001:db8::2", 12), ("fe80::1", 1)] {
            assert_eq!(chosen(&table, 1, local), Some(index), "{local}");
        }
        // Of another interface: a link-local address says nothing of this one.
        assert_eq!(chosen(&table, 1, "fe80::2"), None);
    }

    #[test]
    fn of_two_ports_the_one_that_has_the_address() {
        let infiniband = table(&[(1, 0, GidKind::InfiniBand, "fe80::ec0d:9a03:78:1")]);
        let of = |table: &[GidEntry], port, layer, local: &str| {
            choose(table, port, layer, local.parse().unwrap()).map(|(_, fit)| fit)
        };
        let by_lid = |local| of(&infiniband, 1, LinkLayer::InfiniBand, local);
        let ethernet = |port, local| of(&two_ports(), port, LinkLayer::Ethernet, local);
        assert!(ethernet(2, "192.168.30.7") > ethernet(1, "192.168.30.7"));
        assert!(ethernet(2, "192.168.30.7") > by_lid("192.168.30.7"), "the address is RoCE's");
        assert!(by_lid("10.9.9.9") > ethernet(1, "10.9.9.9"), "no RoCE port has it");
        assert!(by_lid("127.0.0.1") > ethernet(1, "127.0.0.1"));
        assert!(
            ethernet(1, "127.0.0.1") > of(&table(&[(1, 0, GidKind::RoceV2, "fe80::1")]), 1, LinkLayer::Ethernet, "::1")
        );
    }
}
