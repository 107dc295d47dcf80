// Shows the document of the API with Swagger UI. The key is kept nowhere; nothing is sent to a validator elsewhere.
"use strict";
window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  validatorUrl: null,
  tryItOutEnabled: true,
});
