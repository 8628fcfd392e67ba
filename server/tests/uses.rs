//! Reports of use over bare sockets.

mod raw;

use raw::{Client, Reply, config, start};
use sidestep_core::hash::KeyHash;
use sidestep_core::message::{Op, Status};
use sidestep_core::uses::{HASH_BYTES, MAX_REPORTED, encode};
use sidestep_server::Config;
use sidestep_server::access::Tokens;
use sidestep_server::store::Eviction;

const SECRET: &str = "0123456789abcdef-probe";

fn evicting() -> Config {
    Config { eviction: Eviction::Clock, ..config() }
}

fn touch(client: &mut Client, value: &[u8]) -> Reply {
    let frame = client.frame(Op::Touch, 0, None, b"", value);
    client.send(&frame);
    client.reply()
}

fn report(client: &Client, keys: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let table_id = client.welcome.table_id;
    encode((0..keys).map(|key| KeyHash::of(&key.to_le_bytes(), table_id)), &mut bytes);
    bytes
}

#[test]
fn reports_are_wanted_by_who_evicts_and_taken_by_all() {
    for (config, is_wanted) in [(config(), false), (evicting(), true)] {
        let server = start(config);
        let mut client = Client::connect(server.local_addr());
        assert_eq!(client.welcome.report_one_in > 0, is_wanted);
        client.put(&0u64.to_le_bytes(), b"value");
        // Of a key that is there, of some that are not, of none.
        for keys in [10, MAX_REPORTED as u64, 0] {
            let value = report(&client, keys);
            let reply = touch(&mut client, &value);
            assert_eq!((reply.status, reply.version, &reply.value[..]), (Status::Ok, 0, &b""[..]));
        }
        assert_eq!((client.stat("tcp_touch_ok"), client.stat("uses_reported")), (3, 10 + MAX_REPORTED as u64));
        server.stop();
    }
}

#[test]
fn what_is_no_report_is_refused_and_the_connection_goes_on() {
    let server = start(evicting());
    let mut client = Client::connect(server.local_addr());
    for bytes in [1, HASH_BYTES + 1, (MAX_REPORTED + 1) * HASH_BYTES, 32 << 10] {
        let reply = touch(&mut client, &vec![7; bytes]);
        assert_eq!(reply.status, Status::BadRequest, "{bytes} bytes");
        let text = format!("expected at most 512 hashes of 8 bytes each, found {bytes} bytes");
        assert_eq!(String::from_utf8_lossy(&reply.value), text);
    }
    assert_eq!(touch(&mut client, &[7; 40_000]).status, Status::TooLarge);
    let value = report(&client, 3);
    assert_eq!(touch(&mut client, &value).status, Status::Ok);
    assert_eq!((client.stat("tcp_touch_bad_request"), client.stat("uses_reported")), (4, 3));
    server.stop();
}

#[test]
fn who_may_only_read_may_say_so() {
    let tokens: Tokens = format!("probe read-only {SECRET}").parse().expect("tokens");
    let server = start(Config { tokens: Some(tokens), ..evicting() });
    let mut client = Client::try_connect(server.local_addr(), SECRET.as_bytes(), 1, 0).expect("it knows the token");
    let value = report(&client, 5);
    assert_eq!(touch(&mut client, &value).status, Status::Ok);
    assert_eq!((client.put(b"key", b"value").status, client.stat("uses_reported")), (Status::Forbidden, 5));
    server.stop();
}
