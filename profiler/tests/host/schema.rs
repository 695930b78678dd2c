//! The JSON Schema of the format is made from these types and committed, so that the two cannot
//! drift apart: this test fails when they do.

use std::path::Path;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use profiler_export::explain::ExplainReport;
use profiler_export::slope::SlopeReport;
use profiler_export::tax::TaxReport;
use profiler_export::verdict::{CompareReport, GateReport};
use profiler_recording::{Recording, Series};

/// Set to `1`, this variable makes the test write the file instead of comparing it.
const UPDATE: &str = "UPDATE_SCHEMA";

fn generated<T: schemars::JsonSchema>(title: &str) -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(no_format));
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    if let Value::Object(fields) = &mut schema {
        fields.insert("title".to_owned(), json!(title));
    }
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text.push('\n');
    text
}

/// By default ajv refuses a schema with a format that it does not know, and it knows none. The ranges of numbers are there as
/// bounds, too.
fn no_format(schema: &mut Schema) {
    schema.remove("format");
}

fn committed_is(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(file);
    if std::env::var_os(UPDATE).is_some_and(|value| value == "1") {
        std::fs::write(&path, generated).expect("schema is written");
    }
    let committed = std::fs::read_to_string(&path).expect("schema is committed");
    assert!(
        committed == generated,
        "schema/{file} is not that of the types: run this test with {UPDATE}=1, look at the \
         difference, and bump the version if a reader of that version would misread a new file"
    );
}

#[test]
fn the_committed_schemas_are_those_of_the_types() {
    committed_is(
        "recording-v1.schema.json",
        &generated::<Recording>("profiler/recording version 1"),
    );
    committed_is("series-v1.schema.json", &generated::<Series>("profiler/series version 1"));
    committed_is(
        "compare-v1.schema.json",
        &generated::<CompareReport>("profiler/compare version 1"),
    );
    committed_is(
        "explain-v1.schema.json",
        &generated::<ExplainReport>("profiler/explain version 1"),
    );
    committed_is("slope-v1.schema.json", &generated::<SlopeReport>("profiler/slope version 1"));
    committed_is("tax-v1.schema.json", &generated::<TaxReport>("profiler/tax version 1"));
    committed_is("gate-v1.schema.json", &generated::<GateReport>("profiler/gate version 1"));
}

#[test]
fn no_schema_has_a_format() {
    fn formats(value: &Value) -> usize {
        match value {
            Value::Object(fields) => {
                let own = fields.get("format").is_some_and(Value::is_string);
                usize::from(own) + fields.values().map(formats).sum::<usize>()
            }
            Value::Array(items) => items.iter().map(formats).sum(),
            _ => 0,
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
    for file in std::fs::read_dir(folder).expect("schemas are committed").flatten() {
        let text = std::fs::read(file.path()).expect("a schema is read");
        let schema = serde_json::from_slice(&text).expect("a schema is JSON");
        assert_eq!(formats(&schema), 0, "{} has formats", file.path().display());
    }
}
