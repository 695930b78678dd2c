//! The JSON Schema of the format is made from these types and committed, so that the two cannot
//! drift apart: this test fails when they do.

use std::path::Path;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::Profile;

/// Set to `1`, this variable makes the test write the file instead of comparing it.
const UPDATE: &str = "UPDATE_SCHEMA";

fn generated() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Profile>();
    let mut schema = schema.to_value();
    if let Value::Object(fields) = &mut schema {
        fields.insert("title".to_owned(), json!("profiler/profile version 1"));
    }
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text.push('\n');
    text
}

#[test]
fn the_committed_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/profile-v1.schema.json");
    if std::env::var_os(UPDATE).is_some_and(|value| value == "1") {
        std::fs::write(&path, generated()).expect("schema is written");
    }
    let committed = std::fs::read_to_string(&path).expect("schema is committed");
    assert!(
        committed == generated(),
        "schema/profile-v1.schema.json is not that of the types: run this test with {UPDATE}=1, \
         look at the difference, and bump VERSION if an older reader would misread a new file"
    );
}
