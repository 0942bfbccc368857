//! The checked-in schema.json against the schema of the code.

use std::path::Path;

use sandboxd_protocol::schema;
use serde_json::Value;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.json");

#[test]
fn the_checked_in_schema_is_that_of_the_code() {
    let mut generated = serde_json::to_string_pretty(&schema::document()).unwrap();
    generated.push('\n');
    if std::env::var_os("UPDATE_SCHEMA").is_some_and(|update| update == "1") {
        std::fs::write(FILE, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(Path::new(FILE)).unwrap_or_default();
    assert!(checked_in == generated, "protocol/schema.json is out of date: run the tests with UPDATE_SCHEMA=1");
}

#[test]
fn every_reference_has_its_definition_and_every_field_its_description() {
    let document = serde_json::to_value(schema::document()).unwrap();
    let definitions = document["$defs"].as_object().unwrap();
    visit(&document, &mut |value| {
        if let Some(Value::String(reference)) = value.get("$ref") {
            let name = reference.strip_prefix("#/$defs/").unwrap();
            assert!(definitions.contains_key(name), "{reference}");
        }
        if let Some(Value::Object(properties)) = value.get("properties") {
            for (name, property) in properties {
                assert!(property["description"].is_string(), "{name}: {property}");
            }
        }
    });
    for (name, definition) in definitions {
        assert!(definition["description"].is_string(), "{name}");
        assert!(!name.ends_with(|last: char| last.is_ascii_digit()), "{name}: two types have the name");
    }
}

#[test]
fn parameters_refuse_unknown_fields_and_results_require_their_fields() {
    let document = serde_json::to_value(schema::document()).unwrap();
    let definition = |schema: &Value| {
        let name = schema["$ref"].as_str().unwrap().strip_prefix("#/$defs/").unwrap();
        document["$defs"][name].clone()
    };
    for method in document["methods"].as_array().unwrap() {
        assert_eq!(definition(&method["params"])["additionalProperties"], false, "{method}");
    }
    for (name, optional) in [("Sandbox", vec![]), ("CommandResult", vec![]), ("ReadFileResult", vec!["name"])] {
        let definition = &document["$defs"][name];
        let properties = definition["properties"].as_object().unwrap().keys();
        let is_required =
            |name: &&String| definition["required"].as_array().unwrap().contains(&Value::from(name.as_str()));
        assert_eq!(properties.filter(|name| !is_required(name)).collect::<Vec<_>>(), optional, "{name}");
    }
}

fn visit(value: &Value, visitor: &mut impl FnMut(&Value)) {
    visitor(value);
    match value {
        Value::Object(fields) => fields.values().for_each(|value| visit(value, visitor)),
        Value::Array(values) => values.iter().for_each(|value| visit(value, visitor)),
        _ => {}
    }
}
