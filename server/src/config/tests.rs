//! Values that are refused, and files.

use super::*;

fn options(file: &str) -> Result<Options, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.toml");
    std::fs::write(&path, file).unwrap();
    Options { config: Some(path), listen: Some("127.0.0.1:1".into()), ..Options::default() }.with_file()
}

#[test]
fn the_command_line_wins_over_the_file() {
    let file = "listen = '127.0.0.1:2'\nmemory = '64MiB'\nmax-value = 4096\nallow-uid = [7]\npin = true\n";
    let config = options(file).unwrap().into_config().unwrap();
    assert_eq!(config.listen, "127.0.0.1:1");
    assert_eq!(config.memory_bytes, Some(64 << 20));
    assert_eq!(config.max_value_bytes, 4096);
    assert_eq!(config.allow_uids, [7]);
    assert!(config.pin);
}

#[test]
fn an_unknown_name_and_a_wrong_size_are_errors_on_one_line() {
    for file in ["memroy = '1GiB'", "memory = '1GB3'", "workers = -1"] {
        let error = options(file).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn beyond_loopback_a_token_or_a_word_is_needed() {
    let open = Config::default();
    let may = |config: &Config, address: &str| config.check_address(address.parse().unwrap()).is_ok();
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(may(&open, address), "{address}");
    }
    let tokens = Some(Tokens::bare("secret"));
    for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
        assert!(!may(&open, address), "{address}");
        assert!(may(&Config { insecure: true, ..open.clone() }, address));
        assert!(may(&Config { tokens: tokens.clone(), ..open.clone() }, address));
    }
    assert!(options("insecure = true").unwrap().into_config().unwrap().insecure);
}

#[test]
fn an_empty_token_no_workers_and_no_silence_are_errors() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), " \n").unwrap();
    assert!(Options { token_file: Some(file.path().into()), ..Options::default() }.into_config().is_err());
    assert!(Options { workers: Some(0), ..Options::default() }.into_config().is_err());
    for (silence_ms, is_good) in [(0, false), (999, false), (1000, true), (u64::MAX, false)] {
        let options = Options { silence_timeout_ms: Some(silence_ms), ..Options::default() };
        assert_eq!(options.into_config().is_ok(), is_good, "{silence_ms} ms");
    }
}

#[test]
fn nobody_is_idle_unless_it_is_asked_for() {
    for (file, idle_ms) in [("", None), ("idle-timeout-ms = 0", None), ("idle-timeout-ms = 90000", Some(90_000))] {
        let config = options(file).unwrap().into_config().unwrap();
        assert_eq!(config.timeouts.idle, idle_ms.map(Duration::from_millis), "{file}");
    }
}

#[test]
fn certificate_and_key_belong_together() {
    let files = |file: &str| options(file).unwrap().tls_files();
    assert_eq!(files("").unwrap(), None);
    let both = files("tls-cert = 'c'\ntls-key = 'k'\ntls-client-ca = 'a'").unwrap().unwrap();
    assert_eq!((both.cert, both.key, both.client_ca), ("c".into(), "k".into(), Some("a".into())));
    for half in ["tls-cert = 'c'", "tls-key = 'k'", "tls-client-ca = 'a'"] {
        assert!(files(half).unwrap_err().to_string().contains("--tls-cert FILE --tls-key FILE"), "{half}");
    }
}

#[test]
fn a_log_is_apart_from_the_table_and_its_promises_need_it() {
    let made = |file: &str| options(file).unwrap().into_config();
    assert_eq!(made("sync = 'interval'").unwrap().durable, None);
    for (sync, mode) in [("off", SyncMode::Off), ("always", SyncMode::Always)] {
        let log = made(&format!("durable = '/log'\nsync = '{sync}'")).unwrap().durable.unwrap();
        assert_eq!(log, LogConfig { path: "/log".into(), sync: mode });
    }
    let log = made("durable = '/log'\nsync-interval-ms = 7").unwrap().durable.unwrap();
    assert_eq!(log.sync, SyncMode::Interval(Duration::from_millis(7)));
    for wrong in ["sync = 'always'", "durable = '/a'\ndata = '/a'", "durable = '/a'\nsync-interval-ms = 0"] {
        let error = made(wrong).unwrap_err().to_string();
        assert!(error.starts_with("expected "), "{wrong}: {error}");
    }
}
