//! What was found: each fact once, with its text for people and its value for programs.

use serde_json::{Map, Value, json};

#[derive(Debug)]
struct Fact {
    /// In the JSON form.
    key: &'static str,
    /// In the table.
    name: &'static str,
    /// One line or more.
    text: String,
    value: Value,
}

#[derive(Debug)]
struct Problem {
    what: String,
    remedy: String,
    is_fatal: bool,
}

/// Facts in sections, and problems.
#[derive(Debug, Default)]
pub(super) struct Report {
    sections: Vec<(&'static str, Vec<Fact>)>,
    problems: Vec<Problem>,
}

impl Report {
    /// What follows belongs to this part.
    pub(super) fn section(&mut self, name: &'static str) {
        self.sections.push((name, Vec::new()));
    }

    pub(super) fn fact(
        &mut self,
        key: &'static str,
        name: &'static str,
        text: impl Into<String>,
        value: impl Into<Value>,
    ) {
        if let Some((_, facts)) = self.sections.last_mut() {
            facts.push(Fact { key, name, text: text.into(), value: value.into() });
        }
    }

    pub(super) fn problem(&mut self, what: impl Into<String>, remedy: impl Into<String>, is_fatal: bool) {
        self.problems.push(Problem { what: what.into(), remedy: remedy.into(), is_fatal });
    }

    /// One because of which RDMA does not work.
    pub(super) fn fatal(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.problem(what, remedy, true);
    }

    pub(super) fn first_fatal(&self) -> Option<&str> {
        self.problems.iter().find(|problem| problem.is_fatal).map(|problem| problem.what.as_str())
    }

    /// The table.
    pub(super) fn text(&self) -> String {
        let facts = || self.sections.iter().flat_map(|(_, facts)| facts);
        let width = facts().map(|fact| fact.name.len()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for (section, facts) in &self.sections {
            lines.push((*section).to_owned());
            for fact in facts {
                // A name once; further lines stand under the first.
                let names = std::iter::once(fact.name).chain(std::iter::repeat(""));
                lines.extend(names.zip(fact.text.lines()).map(|(name, line)| format!("  {name:width$}  {line}")));
            }
        }
        if !self.problems.is_empty() {
            lines.push("problems".to_owned());
        }
        for Problem { what, remedy, is_fatal } in &self.problems {
            let kind = if *is_fatal { "fatal" } else { "warning" };
            lines.push(format!("  {kind}: {what}"));
            lines.push(format!("    remedy: {remedy}"));
        }
        let verdict = if self.first_fatal().is_none() { "RDMA works" } else { "RDMA would not work" };
        lines.push(verdict.to_owned());
        lines.join("\n") + "\n"
    }

    /// The same for programs: an object of each section, `problems`, `works`.
    pub(super) fn json(&self) -> String {
        let mut all = Map::new();
        for (section, facts) in &self.sections {
            let facts = facts.iter().map(|fact| (fact.key.to_owned(), fact.value.clone()));
            all.insert((*section).to_owned(), Value::Object(facts.collect()));
        }
        let problem =
            |Problem { what, remedy, is_fatal }: &Problem| json!({ "what": what, "remedy": remedy, "fatal": is_fatal });
        all.insert("problems".to_owned(), self.problems.iter().map(problem).collect());
        all.insert("works".to_owned(), self.first_fatal().is_none().into());
        format!("{:#}\n", Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_programs_are_told_the_same() {
        let mut report = Report::default();
        report.section("host");
        report.fact("kernel", "kernel", "6.1", "6.1");
        report.fact("gids", "addresses", "one\ntwo", json!(["one", "two"]));
        report.problem("little memory", "buy some", false);
        assert_eq!(report.first_fatal(), None);
        assert!(report.text().ends_with("RDMA works\n"));
        report.fatal("no device", "plug one in");
        let text = "host\n  kernel     6.1\n  addresses  one\n             two\nproblems\n  warning: little memory\n    \
                    remedy: buy some\n  fatal: no device\n    remedy: plug one in\nRDMA would not work\n";
        assert_eq!(report.text(), text);
        let value: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(value["host"]["gids"][1], "two");
        assert_eq!((&value["problems"][1]["what"], &value["works"]), (&json!("no device"), &json!(false)));
    }
}
