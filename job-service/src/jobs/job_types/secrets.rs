//! Hides the parameters that a job type marks as secret, with JSON Schema's `"writeOnly": true`.
//! Pure.

use serde_json::Value;

/// What is shown instead of a secret.
pub const HIDDEN: &str = "***";
/// How deep schemas are followed. A deeper value is hidden as a whole.
const DEPTH: usize = 32;

/// Hides what the schema marks as secret, wherever it says so about a part of this value.
pub fn hide(value: &mut Value, schema: &Value) {
    hide_by(value, schema, schema, DEPTH);
}

/// Hides the whole value.
pub fn hide_all(value: &mut Value) {
    *value = Value::from(HIDDEN);
}

fn hide_by(value: &mut Value, schema: &Value, root: &Value, depth: usize) {
    if depth == 0 || schema.get("writeOnly") == Some(&Value::Bool(true)) {
        return hide_all(value);
    }
    let below = depth - 1;
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        match reference.strip_prefix('#').and_then(|at| root.pointer(at)) {
            Some(other) => hide_by(value, other, root, below),
            // What it says is not known here.
            None => return hide_all(value),
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for other in schema
            .get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            hide_by(value, other, root, below);
        }
    }
    for name in ["if", "then", "else"] {
        if let Some(other) = schema.get(name) {
            hide_by(value, other, root, below);
        }
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let named = schema.get("properties").and_then(|all| all.get(name));
                let patterns = schema.get("patternProperties").and_then(Value::as_object);
                let others = patterns.into_iter().flat_map(serde_json::Map::values);
                let rest = ["additionalProperties", "unevaluatedProperties"];
                let rest = rest.iter().filter_map(|name| schema.get(name));
                // Too much is hidden rather than too little: a pattern counts for every name.
                for other in named.into_iter().chain(others).chain(rest) {
                    hide_by(member, other, root, below);
                }
            }
        }
        Value::Array(elements) => {
            let of_all = ["items", "prefixItems", "additionalItems", "contains"];
            let schemas: Vec<&Value> = of_all
                .iter()
                .filter_map(|name| schema.get(name))
                .flat_map(|items| match items {
                    Value::Array(each) => each.iter().collect(),
                    one => vec![one],
                })
                .collect();
            for element in elements {
                for other in &schemas {
                    hide_by(element, other, root, below);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_marked_is_hidden_wherever_it_is() {
        let secret = json!({"type": "string", "writeOnly": true});
        for (schema, value, shown) in [
            (secret.clone(), json!("s"), json!("***")),
            (
                json!({"properties": {"key": secret, "user": {}}}),
                json!({"key": "s", "user": "u"}),
                json!({"key": "***", "user": "u"}),
            ),
            (
                json!({"items": {"$ref": "#/definitions/login"}, "definitions": {"login": {"properties": {"key": secret}}}}),
                json!([{"key": "s"}, {"user": "u"}]),
                json!([{"key": "***"}, {"user": "u"}]),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": secret}}]}),
                json!({"a": 1, "b": {"deep": "s"}}),
                json!({"a": 1, "b": "***"}),
            ),
            (
                json!({"additionalProperties": secret, "properties": {"a": {}}}),
                json!({"b": "s"}),
                json!({"b": "***"}),
            ),
            (json!({"$ref": "elsewhere"}), json!({"a": 1}), json!("***")),
            (json!({"$ref": "#"}), json!({"a": 1}), json!("***")),
            (json!({}), json!({"a": 1}), json!({"a": 1})),
        ] {
            let mut value = value;
            hide(&mut value, &schema);
            assert_eq!(value, shown, "{schema}");
        }
    }
}
