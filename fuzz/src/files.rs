//! Text that a person writes: configuration, tokens and sizes of the server, properties of the bench.

use sidestep_bench::workload::{PropertyMap, Workload, parse};
use sidestep_server::access::Tokens;
use sidestep_server::config::Options;
use sidestep_server::size::ByteSize;

/// The bytes as each of the files.
pub(crate) fn server_files(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = text.parse::<Tokens>();
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
    if let Ok(options) = toml::from_str::<Options>(text) {
        // It would be read.
        let options = Options { token_file: None, ..options };
        let _ = options.into_config();
    }
}

/// A file of properties: a workload that was understood is one that the bench can say again.
pub(crate) fn properties(bytes: &[u8]) {
    let Ok(properties) = parse(bytes, "bytes") else { return };
    let _ = Workload::unknown_properties(&properties);
    let Ok(workload) = Workload::from_properties("bytes", &properties) else { return };
    let number = |name: &str, value: u64| (name.to_owned(), value.to_string());
    let mut again: PropertyMap = properties;
    again.extend([number("recordcount", workload.records), number("zeropadding", workload.zero_padding as u64)]);
    again.extend([number("fieldcount", 1), number("fieldlength", workload.value_bytes as u64)]);
    let again = Workload::from_properties("bytes", &again).expect("its own numbers");
    assert_eq!((again.records, again.value_bytes), (workload.records, workload.value_bytes));
    assert_eq!((again.mix, again.distribution), (workload.mix, workload.distribution));
}
