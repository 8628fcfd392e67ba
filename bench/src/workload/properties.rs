//! YCSB's property files and `-p name=value`, as they are.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use super::{Distribution, MAX_ZERO_PADDING, Mix, Workload};
use crate::error::BenchError;

/// Properties by name; later ones replace earlier ones.
pub type PropertyMap = BTreeMap<String, String>;

/// Largest value of a record: what a value may have at most in any store here.
const MAX_VALUE_BYTES: usize = 1 << 30;

/// Properties of YCSB that change nothing here, since they are about its own machinery.
const WITHOUT_EFFECT: [&str; 12] = [
    "workload",
    "table",
    "exporter",
    "exportfile",
    "measurementtype",
    "histogram.buckets",
    "timeseries.granularity",
    "maxscanlength",
    "minscanlength",
    "scanlengthdistribution",
    "readallfields",
    "writeallfields",
];

/// Reads a file of Java properties.
///
/// # Errors
/// A file that cannot be read or is not of that format.
pub fn parse_file(path: &Path) -> Result<PropertyMap, BenchError> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|source| BenchError::File { path: shown.clone(), source })?;
    parse(file, &shown)
}

/// Reads what a file of Java properties holds; `shown` is its name for a person.
///
/// # Errors
/// Bytes that cannot be read or are not of that format.
pub fn parse(mut file: impl Read, shown: &str) -> Result<PropertyMap, BenchError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|source| BenchError::File { path: shown.to_owned(), source })?;
    let unusable = |why: &dyn Display| BenchError::Usage(format!("{shown}: not a Java properties file: {why}"));
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(unusable(&"expected ISO 8859-1 or UTF-8, found the mark of UTF-16"));
    }
    // java-properties 2.0 panics over a file that ends within a character or a mark, which no line end can do.
    bytes.push(b'\n');
    Ok(java_properties::read(&bytes[..]).map_err(|error| unusable(&error))?.into_iter().collect())
}

/// `name=value` of `-p`.
///
/// # Errors
/// Text without `=`.
pub fn parse_assignment(text: &str) -> Result<(String, String), BenchError> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| BenchError::Usage(format!("-p {text:?}: expected name=value")))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn scans_refused() -> BenchError {
    BenchError::Usage("scans (YCSB's workload E) need ordered keys, and the table is a hash table: refused".into())
}

/// Takes properties and remembers which were asked for.
struct Reader<'p> {
    properties: &'p PropertyMap,
}

impl Reader<'_> {
    fn value<T: FromStr>(&self, name: &str, default: T) -> Result<T, BenchError> {
        match self.properties.get(name) {
            None => Ok(default),
            Some(text) => {
                text.trim().parse().map_err(|_| BenchError::Usage(format!("property {name}={text}: not a number")))
            }
        }
    }

    fn proportion(&self, name: &str, default: f64) -> Result<f64, BenchError> {
        let share = self.value(name, default)?;
        if (0.0..=1.0).contains(&share) {
            return Ok(share);
        }
        Err(BenchError::Usage(format!("property {name}={share}: expected 0 to 1")))
    }

    fn text(&self, name: &str, default: &'static str) -> &str {
        self.properties.get(name).map_or(default, |text| text.trim())
    }
}

impl Workload {
    /// A workload from YCSB's properties, with YCSB's defaults.
    ///
    /// # Errors
    /// Values that cannot be used, and scans.
    pub fn from_properties(name: &str, properties: &PropertyMap) -> Result<Self, BenchError> {
        let reader = Reader { properties };
        if reader.proportion("scanproportion", 0.0)? > 0.0 {
            return Err(scans_refused());
        }
        let mix = Mix {
            read: reader.proportion("readproportion", 0.95)?,
            update: reader.proportion("updateproportion", 0.05)?,
            insert: reader.proportion("insertproportion", 0.0)?,
            read_modify_write: reader.proportion("readmodifywriteproportion", 0.0)?,
        };
        if mix.read + mix.update + mix.insert + mix.read_modify_write <= 0.0 {
            return Err(BenchError::Usage("every operation has a proportion of 0".into()));
        }
        let records = reader.value("recordcount", 1000_u64)?;
        if records == 0 {
            return Err(BenchError::Usage("property recordcount=0: expected at least 1".into()));
        }
        if reader.value("insertstart", 0_u64)? != 0 {
            return Err(BenchError::Usage("property insertstart: only 0 is supported".into()));
        }
        if reader.text("fieldlengthdistribution", "constant") != "constant" {
            return Err(BenchError::Usage(
                "property fieldlengthdistribution: only constant is supported, since every read is verified".into(),
            ));
        }
        let value_bytes = reader
            .value("fieldcount", 10_usize)?
            .checked_mul(reader.value("fieldlength", 100_usize)?)
            .filter(|&bytes| bytes <= MAX_VALUE_BYTES)
            .ok_or_else(|| BenchError::Usage(format!("fieldcount x fieldlength passes {MAX_VALUE_BYTES} bytes")))?;
        let zero_padding = reader.value("zeropadding", 1_usize)?;
        if zero_padding > MAX_ZERO_PADDING {
            return Err(BenchError::Usage(format!("property zeropadding={zero_padding}: at most {MAX_ZERO_PADDING}")));
        }
        let operations = reader.value("operationcount", 0_u64)?;
        Ok(Self {
            name: name.to_owned(),
            records,
            operations: (operations > 0).then_some(operations),
            value_bytes,
            ordered_keys: reader.text("insertorder", "hashed") == "ordered",
            zero_padding,
            mix,
            distribution: distribution(&reader)?,
        })
    }

    /// Names of properties that are known neither here nor to be without effect.
    #[must_use]
    pub fn unknown_properties(properties: &PropertyMap) -> Vec<String> {
        const KNOWN: [&str; 22] = [
            "recordcount",
            "operationcount",
            "fieldcount",
            "fieldlength",
            "fieldlengthdistribution",
            "readproportion",
            "updateproportion",
            "insertproportion",
            "scanproportion",
            "readmodifywriteproportion",
            "requestdistribution",
            "insertorder",
            "insertstart",
            "insertcount",
            "zeropadding",
            "hotspotdatafraction",
            "hotspotopnfraction",
            "exponential.percentile",
            "exponential.frac",
            "threadcount",
            "target",
            "maxexecutiontime",
        ];
        let known = |name: &str| KNOWN.contains(&name) || WITHOUT_EFFECT.contains(&name);
        properties.keys().filter(|name| !known(name)).cloned().collect()
    }
}

fn distribution(reader: &Reader<'_>) -> Result<Distribution, BenchError> {
    Ok(match reader.text("requestdistribution", "uniform") {
        "uniform" => Distribution::Uniform,
        "zipfian" => Distribution::ScrambledZipfian,
        "zipfian-exact" => Distribution::ZipfianExact,
        "latest" => Distribution::Latest,
        "sequential" => Distribution::Sequential,
        "hotspot" => Distribution::Hotspot {
            data: reader.proportion("hotspotdatafraction", 0.2)?,
            operations: reader.proportion("hotspotopnfraction", 0.8)?,
        },
        "exponential" => {
            let percentile = reader.value("exponential.percentile", 95.0)?;
            let fraction = reader.value("exponential.frac", 0.857_142_857_1)?;
            if !(percentile > 0.0 && percentile < 100.0 && fraction > 0.0) {
                return Err(BenchError::Usage("exponential: percentile within 0..100 and frac above 0".into()));
            }
            Distribution::Exponential { percentile, fraction }
        }
        other => return Err(BenchError::Usage(format!("property requestdistribution={other}: not known"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// YCSB's six files, without their comments, as they are in its repository.
    const TEMPLATE: &str = "# Yahoo! Cloud System Benchmark\n#   Read/update ratio: 50/50\n\nrecordcount=1000\n\
        operationcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n\n";

    fn parsed(body: &str) -> Result<Workload, BenchError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), format!("{TEMPLATE}{body}")).expect("written");
        let properties = parse_file(file.path())?;
        assert_eq!(Workload::unknown_properties(&properties), Vec::<String>::new());
        Workload::from_properties("file", &properties)
    }

    #[test]
    fn ycsbs_files_give_the_table() {
        let files = [
            (
                "a",
                "readproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\n\nrequestdistribution=zipfian\n",
            ),
            (
                "b",
                "readproportion=0.95\nupdateproportion=0.05\nscanproportion=0\ninsertproportion=0\n\nrequestdistribution=zipfian\n",
            ),
            (
                "c",
                "readproportion=1\nupdateproportion=0\nscanproportion=0\ninsertproportion=0\n\nrequestdistribution=zipfian\n",
            ),
            (
                "d",
                "readproportion=0.95\nupdateproportion=0\nscanproportion=0\ninsertproportion=0.05\n\nrequestdistribution=latest\n",
            ),
            (
                "f",
                "readproportion=0.5\nupdateproportion=0\nscanproportion=0\ninsertproportion=0\nreadmodifywriteproportion=0.5\n\nrequestdistribution=zipfian\n",
            ),
        ];
        for (name, body) in files {
            let file = parsed(body).expect(name);
            let preset = Workload::preset(name).expect(name);
            assert_eq!((file.mix, file.distribution), (preset.mix, preset.distribution), "workload {name}");
            assert_eq!((file.records, file.operations, file.value_bytes), (1000, Some(1000), 1000));
        }
    }

    /// java-properties 2.0 panics over the first five as they are.
    #[test]
    fn a_file_that_ends_within_a_mark_or_a_character_is_borne() {
        for bytes in [&b"\xff"[..], b"\xfe", b"\xef", b"\xef\xbb", b"\xef\xbb\xbfa=\xc3"] {
            assert!(parse(bytes, "bytes").is_ok(), "{bytes:02x?}");
        }
        for bytes in [&b"\xff\xfea\0=\0"[..], b"\xfe\xff\0a\0=", b"\xff\xfe\x3d\xd8"] {
            assert!(parse(bytes, "bytes").expect_err("refused").to_string().contains("UTF-16"), "{bytes:02x?}");
        }
        let latin = parse(&b"name=\xe9\nother = x\\\n  y"[..], "bytes").expect("ISO 8859-1");
        assert_eq!((&latin["name"][..], &latin["other"][..]), ("\u{e9}", "xy"));
    }

    #[test]
    fn scans_are_refused_with_the_reason() {
        let body = "readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\n\
            requestdistribution=zipfian\nmaxscanlength=100\nscanlengthdistribution=uniform\n";
        for refused in [parsed(body), Workload::preset("e"), Workload::preset("workloade")] {
            assert!(refused.expect_err("refused").to_string().contains("ordered keys"));
        }
    }

    #[test]
    fn defaults_are_ycsbs() {
        let workload = Workload::from_properties("defaults", &PropertyMap::new()).expect("defaults");
        assert_eq!(workload.mix, Mix { read: 0.95, update: 0.05, insert: 0.0, read_modify_write: 0.0 });
        assert_eq!((workload.value_bytes, workload.distribution), (1000, Distribution::Uniform));
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (name, value) in [
            ("recordcount", "0"),
            ("recordcount", "many"),
            ("readproportion", "1.5"),
            ("requestdistribution", "pareto"),
            ("fieldlengthdistribution", "zipfian"),
            ("fieldlength", "99999999999999"),
            ("exponential.percentile", "100"),
        ] {
            let mut properties = PropertyMap::from([("requestdistribution".to_owned(), "exponential".to_owned())]);
            properties.insert(name.to_owned(), value.to_owned());
            assert!(Workload::from_properties("bad", &properties).is_err(), "{name}={value}");
        }
        assert!(parse_assignment("novalue").is_err());
    }
}
